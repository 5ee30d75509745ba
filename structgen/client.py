"""A structgen server from Python; see structgen.frontend.client."""

from __future__ import annotations

from structgen.frontend.checks import ConstraintCheck
from structgen.frontend.client import AsyncClient, Client
from structgen.frontend.grpc.requests import Completion
from structgen.messages import TextVerdict

__all__ = ["AsyncClient", "Client", "Completion", "ConstraintCheck", "TextVerdict"]
