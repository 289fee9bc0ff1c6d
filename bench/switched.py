"""A node whose check of live traffic is switched by signals: the measure of what it costs, and never a product.

Owns: ``python -m bench.switched serve …``, an ordinary node that stops sampling at SIGUSR1 and goes on at SIGUSR2. The
same processes with and without, within seconds: two clusters side by side differ by more than what is measured.
"""

from __future__ import annotations

import asyncio
import signal

from oncegate.gateway.cli.main import main
from oncegate.gateway.node.node import Node


class SwitchedNode(Node):
    """Turns :attr:`live_check` off and on."""

    async def start(self) -> None:
        """Start, and listen to the signals."""
        await super().start()
        check = self.live_check
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, setattr, self, "live_check", None)
        loop.add_signal_handler(signal.SIGUSR2, setattr, self, "live_check", check)


if __name__ == "__main__":
    from oncegate.gateway.http import server

    vars(server)["Node"] = SwitchedNode
    main()
