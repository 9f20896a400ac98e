"""``exaslurm endpoint``: the address that an OpenAI client takes."""

from __future__ import annotations

from exaslurm.cli.output import result, result_json, talk
from exaslurm.cli.verb import deployment_argument, deployment_site_option, json_option, verb


@verb("endpoint", short_help="Print the OpenAI-compatible base URL.")
@deployment_argument
@json_option
@deployment_site_option
def endpoint_command(deployment: str, as_json: bool, site: str | None) -> None:
    """Print the base URL of DEPLOYMENT's router, for OPENAI_BASE_URL or base_url=.

    If the router listens on the loopback address, an ssh line for other machines goes to stderr.
    """
    import os

    from exaslurm.api.endpoint import find_endpoint, ssh_line
    from exaslurm.api.locate import find_run_dir
    from exaslurm.core.codec import to_jsonable

    run_dir = find_run_dir(deployment, dict(os.environ), site=site)
    routers = find_endpoint(run_dir)
    tunnel = ssh_line(routers[0])
    if as_json:
        result_json(
            {
                "schema": "exaslurm/endpoint-urls/1",
                "deployment": run_dir.deployment,
                "base_url": routers[0].base_url,
                "ssh": tunnel,
                "routers": to_jsonable(routers),
            }
        )
        return
    result(routers[0].base_url)
    if tunnel is not None:
        talk(f"it listens on {routers[0].host} only; from another machine: {tunnel}")
