"""The section `mas.gateway`."""

from __future__ import annotations

from pydantic import Field

from verl_ext.settings import Settings


class GatewaySection(Settings):
    """Where programs ask, and how long they are waited for. `configs/base/multi_agent.yaml` explains every field."""

    host: str = "127.0.0.1"
    port: int = Field(0, ge=0, le=65_535, description="0: any free one")
    ports: int = Field(64, ge=1, description="how many ports are tried, from `port` on")
    quiet: float | None = Field(
        None, ge=0, le=10, description="seconds without a further request; null: the program's kind's"
    )
    max_body: int = Field(16_777_216, ge=1024, description="bytes")
