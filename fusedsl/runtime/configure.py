"""Which configuration a kernel runs with: tuned on this machine, or the default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from fusedsl.fuse import KernelPlan, Plan
from fusedsl.runtime import tuned
from fusedsl.schedule import Extent, Target, TileConfig, choose, row_class


@dataclass(eq=False)
class Configurations:
    """The configurations of one program's kernels. The disk is asked once per shape class."""

    plan: Plan
    options: Mapping[str, Any]
    _known: dict[Any, TileConfig] = field(default_factory=dict[Any, TileConfig])

    def adjusted(self, config: TileConfig) -> TileConfig:
        """A configuration with what the program's options say."""
        if self.options["tf32"] and config.precision == "exact":
            config = replace(config, precision="tf32")
        if not self.options.get("fast_math", True):
            config = replace(config, fast=False)
        return config

    def default(
        self, kernel: KernelPlan, env: Mapping[str, int], target: Target, main_loop: str
    ) -> TileConfig:
        """The configuration without tuning."""
        return self.adjusted(choose(self.plan, kernel, env, target, main_loop).on(target))

    def of(
        self,
        kernel: KernelPlan,
        env: Mapping[str, int],
        target: Target,
        device: torch.device,
        main_loop: str,
    ) -> TileConfig:
        """The tuned configuration if there is one, else the default."""
        if target.backend == "interpreter":
            return self.default(kernel, env, target, main_loop)
        extent = Extent.of(self.plan, kernel, env)
        memo = (kernel.name, row_class(extent.rows), extent.cols, extent.depth, main_loop, device)
        if memo not in self._known:
            key = self.key(kernel, env, target, device, main_loop)
            entry = tuned.find(key, self.plan, kernel, target, main_loop)
            found = (
                entry.config.on(target) if entry else self.default(kernel, env, target, main_loop)
            )
            self._known[memo] = found
        return self._known[memo]

    def key(
        self,
        kernel: KernelPlan,
        env: Mapping[str, int],
        target: Target,
        device: torch.device,
        main_loop: str,
    ) -> dict[str, Any]:
        """The key of a kernel's tuned configuration on a device."""
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
        return tuned.key_of(self.plan, kernel, env, target, main_loop, self.options, name)

    def forget(self) -> None:
        """Ask the disk again."""
        self._known.clear()
