"""How nodes reach the world, as the site config states it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from exaslurm.util.fields import TEXT, Section


class Internet(Section):
    """Whether nodes reach the internet, where models with `source: {hf: ...}` come from."""

    access: Literal["direct", "proxy", "none"] | None = Field(
        default=None,
        description="direct, also through NAT; proxy: HTTPS only, through `proxy`; none: models "
        "have to be there before. Default: not known.",
    )
    proxy: Annotated[str, TEXT, Field(pattern=r"^https?://[A-Za-z0-9.-]+(:[0-9]+)?/?$")] | None = (
        Field(default=None, description="Address of the proxy, with http:// and port.")
    )
