"""``edgeprec service``: keep a bundle served by systemd, from boot on."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgeprec.errors import ConfigError, EdgePrecError

if TYPE_CHECKING:
    from edgeprec.runtime.systemd_place import Place
    from edgeprec.runtime.systemd_unit import Account

__all__ = ["service_command"]

MACHINE_ROOT = Path("/")


@click.command("service", short_help="Keep a bundle served by systemd.")
@click.argument("action", type=click.Choice(("install", "remove", "print")))
@click.argument("bundle", type=click.Path(path_type=Path), required=False)
@click.option("--user", "is_user", is_flag=True, help="For this user alone, without root.")
@click.option("--dry-run", "is_dry_run", is_flag=True, help="Show what would be written and run, and do nothing.")
def service_command(action: str, bundle: Path | None, is_user: bool, is_dry_run: bool) -> None:
    """Install, remove or print a systemd unit that serves BUNDLE.

    The service answers on http://127.0.0.1:8080 once the model is loaded, starts again after a crash, and finishes its
    requests when it is stopped. Its settings are EDGEPREC_* lines in /etc/default/edgeprec.

    \b
    Examples:
      edgeprec service print pair.edgeprec
      edgeprec service install pair.edgeprec --dry-run
      edgeprec service install pair.edgeprec --user
      edgeprec service remove --user
    """
    from edgeprec.runtime.systemd_install import DryRun, Steps, install_unit, remove_unit, run_systemctl
    from edgeprec.runtime.systemd_place import Place

    place = Place.of_user(os.environ, Path.home()) if is_user else Place.of_machine(MACHINE_ROOT)
    if action == "print":
        click.echo(_unit(bundle, place, action), nl=False)
        return
    if not is_dry_run:
        _require_rights(is_user)
    steps = DryRun(say=click.echo) if is_dry_run else Steps(say=click.echo, systemctl=run_systemctl)
    if action == "remove":
        if bundle is not None:
            raise ConfigError(f"service remove takes no bundle, got {bundle}: there is one service, edgeprec")
        remove_unit(place, steps)
        return
    install_unit(place, _unit(bundle, place, action), steps)
    if not is_dry_run:
        _say_what_next(place)


def _unit(bundle: Path | None, place: Place, action: str) -> str:
    """Return the unit's text, after looking at what it will need."""
    from edgeprec.bundle import Bundle
    from edgeprec.runtime.service.packages import require_service_packages
    from edgeprec.runtime.service.settings import ServiceSettings
    from edgeprec.runtime.systemd_unit import UnitFacts, drain_seconds, unit_text

    if bundle is None:
        raise ConfigError(f"service {action} needs a bundle: edgeprec service {action} BUNDLE")
    Bundle.read_manifest(bundle)
    require_service_packages()
    program, bundle = _program(), bundle.resolve()
    default_drain = ServiceSettings(model_name=bundle.name).drain_seconds
    settings_text = place.settings.read_text(encoding="utf-8") if place.settings.is_file() else ""
    facts = UnitFacts(
        program=program,
        bundle=bundle,
        reads=_reads(),
        settings=place.settings_reference,
        drain_seconds=drain_seconds(settings_text, default_drain),
        account=None if place.is_user else _account(bundle, (program, *_reads()), is_draft=action == "print"),
    )
    return unit_text(facts)


def _account(bundle: Path, programs: tuple[Path, ...], *, is_draft: bool) -> Account:
    """Choose who the service runs as; a draft is shown even where it could not start, with the reason beside it."""
    from edgeprec.runtime.systemd_account import account_for, known_groups
    from edgeprec.runtime.systemd_unit import Account

    try:
        return account_for(bundle, programs, known_groups())
    except ConfigError as error:
        if not is_draft:
            raise
        click.echo(f"edgeprec: warning: this unit would not start here: {error}", err=True)
        return Account(user=None, groups=known_groups())


def _program() -> Path:
    """Return the program ``edgeprec`` of this environment; its folder is kept, or it would lose its packages."""
    beside = Path(sys.executable).with_name("edgeprec")
    found = beside if beside.is_file() else Path(shutil.which("edgeprec") or "")
    if not found.is_absolute():
        raise ConfigError(f"the program edgeprec is not beside {sys.executable}: install the package with pip")
    return found


def _reads() -> tuple[Path, ...]:
    """Return the interpreter behind the environment's link, and the package, which a checkout has elsewhere."""
    return Path(sys.executable).resolve(), Path(__file__).resolve().parents[1]


def _require_rights(is_user: bool) -> None:
    if not is_user and os.geteuid() != 0:
        raise ConfigError(
            f"a service for the whole machine needs root, this is user {os.geteuid()}: run "
            f"sudo {_program()} service ..., or give --user"
        )
    if shutil.which("systemctl") is None:
        raise EdgePrecError(
            "systemctl is not installed, so there is no systemd to install into: edgeprec service print shows the unit"
        )


def _say_what_next(place: Place) -> None:
    from edgeprec.runtime.systemd_account import known_groups

    user = "--user " if place.is_user else ""
    click.echo(f"settings {place.settings}; state systemctl {user}status edgeprec; log journalctl {user}-u edgeprec")
    if not place.is_user:
        return
    click.echo("from boot on, without a login: loginctl enable-linger")
    missing = [name for name in known_groups() if name not in _own_groups()]
    if missing:
        click.echo(f"for the GPU and its power: sudo usermod -aG {','.join(missing)} $USER, then log in again")


def _own_groups() -> set[str]:
    import grp

    own = {*os.getgroups(), os.getegid()}
    return {group.gr_name for group in grp.getgrall() if group.gr_gid in own}
