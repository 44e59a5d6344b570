"""``edgeprec chat``: talk with the model."""

from __future__ import annotations

from typing import Any

import click

from edgeprec.cli.common import quiet_option
from edgeprec.cli.options import config_from, generation_options
from edgeprec.cli.session_options import bundle_argument, open_session, session_options

__all__ = ["chat_command"]


@click.command("chat", short_help="Talk with the model.")
@bundle_argument
@click.option("--system", metavar="TEXT", help="What the model is told before the conversation.")
@generation_options
@session_options
@quiet_option
def chat_command(**values: Any) -> None:
    """Talk with the model in BUNDLE, with its chat template.

    Ctrl-C ends a reply and keeps what there is of it; Ctrl-D or /exit ends the conversation. /help lists the commands.

    \b
    Examples:
      edgeprec chat pair.edgeprec
      edgeprec chat pair.edgeprec --system "Answer in one sentence." --temperature 0.7 -n 300
    """
    from edgeprec.cli.conversation import Conversation

    config = config_from(values)
    with open_session(values["bundle"], values) as session:
        Conversation(session, config, system=values["system"], is_quiet=values["quiet"]).run()
