"""Other ways to learn policies than Q-learning: the weights of the rule `score` by evolution, networks by PPO or DQN.

The weights and the network that come with autobatch were learned by these. `autobatch policy learn` runs this folder
for `--algorithm es`, `ppo` and `dqn`; your own algorithm needs only the environment of `autobatch.policies.env`.
"""
