"""All operations of the admin library over scripted servers."""

from unittest.mock import patch

from holdfast.admin.cluster_access import ClusterAccess
from holdfast.admin.operations import Admin


def scripted_admin(access: ClusterAccess) -> Admin:
    """Return the operations over *access*, which answers from a script."""
    with patch("holdfast.admin.operations.ClusterAccess", lambda *_, **__: access):
        return Admin("namesrv:9876")
