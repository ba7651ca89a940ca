"""The network of `autobatch.policies.rules.network` in torch, for learning with stable-baselines3.

torch takes seconds to import, so the classes are made inside functions, by the only module that learns (`deep`). Types
that are not ready are masked: PPO never draws them, and in DQN their value is so low that they are never the best type
of a state or of the next state.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from autobatch.policies.rules.network import OVERALL_FEATURES, TYPE_FEATURES, Network

NEVER = -1e6  # the value of a type that is not ready


def make_scorer(n_hidden: int) -> Any:
    """Make the module that scores types: (types [B, T, F], overall [B, G]) -> scores [B, T], hidden numbers [B, H].

    The hidden numbers are means, over types, of the last layer's input.
    """
    import torch
    from torch import nn

    class Scorer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(len(TYPE_FEATURES), n_hidden)
            self.own = nn.Linear(n_hidden, n_hidden)
            self.mean = nn.Linear(n_hidden, n_hidden, bias=False)
            self.overall = nn.Linear(len(OVERALL_FEATURES), n_hidden, bias=False)
            self.last = nn.Linear(n_hidden, 1, bias=False)

        def forward(self, types: torch.Tensor, overall: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            unrun = types[:, :, :1]
            share = unrun / unrun.sum(1, keepdim=True).clamp(min=1)
            hidden = torch.relu(self.first(types)) * unrun
            shared = self.mean((hidden * share).sum(1)) + self.overall(overall)
            deep = torch.relu(self.own(hidden) + shared[:, None]) * unrun
            return self.last(deep)[:, :, 0], (deep * share).sum(1)

    return Scorer()


def to_weights(scorer: Any) -> Network:
    """Copy a scorer's weights, rounded to 6 decimals, which keeps files small."""

    def copy(tensor: Any) -> Any:
        return np.round(tensor.detach().cpu().numpy().astype(np.float64), 6)

    return Network(
        copy(scorer.first.weight),
        copy(scorer.first.bias),
        copy(scorer.own.weight),
        copy(scorer.mean.weight),
        copy(scorer.overall.weight),
        copy(scorer.own.bias),
        copy(scorer.last.weight)[0],
    )


def make_actor_critic(n_hidden: int) -> Any:
    """Make the class of policies that MaskablePPO learns; `policy.mlp_extractor.actor` is the scorer."""
    import torch
    from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
    from torch import nn

    class Two(nn.Module):
        """Actor and critic; both read the flattened observation."""

        def __init__(self, n_types: int) -> None:
            super().__init__()
            self.latent_dim_pi, self.latent_dim_vf = n_types, n_hidden
            self.actor, self.critic = make_scorer(n_hidden), make_scorer(n_hidden)

        def forward(self, flat: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.forward_actor(flat), self.forward_critic(flat)

        def forward_actor(self, flat: torch.Tensor) -> torch.Tensor:
            scores: torch.Tensor = self.actor(*_unpack(flat)[1:])[0]
            return scores

        def forward_critic(self, flat: torch.Tensor) -> torch.Tensor:
            hidden: torch.Tensor = self.critic(*_unpack(flat)[1:])[1]
            return hidden

    class ActorCritic(MaskableActorCriticPolicy):
        def _build_mlp_extractor(self) -> None:
            self.mlp_extractor: Any = Two(self.action_space.n)  # type: ignore[attr-defined]

        def _build(self, lr_schedule: Any) -> None:
            super()._build(lr_schedule)
            self.action_net: Any = nn.Identity()  # the scores are the logits
            self.optimizer = torch.optim.Adam(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)

    return ActorCritic


def make_masked_dqn(n_hidden: int) -> tuple[Any, Any]:
    """Make the class of DQN that explores among ready types, and the class of its policies; `policy.q_net.scorer`."""
    import torch
    from stable_baselines3 import DQN
    from stable_baselines3.dqn.policies import DQNPolicy, QNetwork

    class MaskedQ(QNetwork):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.q_net = torch.nn.Sequential()
            self.scorer = make_scorer(n_hidden)

        def forward(self, obs: Any) -> torch.Tensor:
            mask, types, overall = _unpack(self.extract_features(obs, self.features_extractor))
            scores, _ = self.scorer(types, overall)
            return torch.where(mask > 0, scores, NEVER)

    class MaskedPolicy(DQNPolicy):
        def make_q_net(self) -> Any:
            return MaskedQ(**self._update_features_extractor(self.net_args, features_extractor=None)).to(self.device)

    class MaskedDQN(DQN):
        def _sample_action(self, learning_starts: int, action_noise: Any = None, n_envs: int = 1) -> Any:
            return super()._sample_action(0, action_noise, n_envs)

        def predict(
            self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
        ) -> tuple[Any, Any]:
            actions, state = self.policy.predict(observation, state, episode_start, deterministic=True)
            if not deterministic:
                chance = self.action_space.np_random
                for seat, mask in enumerate(observation["mask"]):
                    if chance.random() < self.exploration_rate:
                        actions[seat] = chance.choice(np.flatnonzero(mask))
            return actions, state

    return MaskedDQN, MaskedPolicy


def _unpack(flat: Any) -> tuple[Any, Any, Any]:
    """Split a flattened observation, whose parts are in the order of their names: mask, types, overall."""
    n_overall, n_features = len(OVERALL_FEATURES), len(TYPE_FEATURES)
    n_types = (flat.shape[1] - n_overall) // (n_features + 1)
    types = flat[:, n_types + n_overall :].reshape(-1, n_types, n_features)
    return flat[:, :n_types], types, flat[:, n_types : n_types + n_overall]
