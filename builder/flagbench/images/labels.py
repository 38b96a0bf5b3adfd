"""The labels of flagbench's images."""

from __future__ import annotations

CONTEXT_LABEL = "dev.flagbench.context"
"""`sha256:<64 hex>` over all that decides what the image is. It joins all copies of an image."""
BASE_LABEL = "dev.flagbench.base"
"""`sha256:<64 hex>`: of the base's manifest where a registry gave one, else the engine's id of it."""
LOCK_LABEL = "dev.flagbench.lock"
STACK_LABEL = "dev.flagbench.stack"
CASE_LABEL = "dev.flagbench.case"
CREATED_LABEL = "org.opencontainers.image.created"
REVISION_LABEL = "org.opencontainers.image.revision"
BASE_NAME_LABEL = "org.opencontainers.image.base.name"
BASE_DIGEST_LABEL = "org.opencontainers.image.base.digest"
"""`sha256:<64 hex>` of the base's manifest in its registry; empty where no registry is known to have it."""
