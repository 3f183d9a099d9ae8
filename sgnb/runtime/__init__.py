"""Runs programs: what a program is while it runs. Importing it makes the hooks of rewritten code known."""

from sgnb.runtime import hooks as hooks
