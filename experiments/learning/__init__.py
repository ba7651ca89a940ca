"""Ways to learn policies other than Q-learning: weights of the rule `score` by evolution, and networks by PPO or DQN.

The weights and the network of the package were learned with these. `autobatch policy learn` runs this folder for
`--algorithm es`, `ppo` and `dqn`; your own algorithm needs only the environment of `autobatch.policies.env`.
"""
