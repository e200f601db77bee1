"""The secrets of a role."""

from random import Random

from holdfast.access.role_secrets import RoleSecrets


def test_the_text_form_hides_them() -> None:
    """It may reach a log or an error."""
    secrets = RoleSecrets(bytes, ("the-first-one", "the-second-one"))

    assert str(secrets) == repr(secrets) == "RoleSecrets(2 of the cluster)"


def test_a_role_in_a_test_has_no_cluster_secret() -> None:
    """And its nonces can be predicted, so that a simulation can be repeated."""
    nonces = [RoleSecrets.none(Random(7)).new_nonce(32) for _ in range(2)]

    assert nonces[0] == nonces[1]
    assert len(nonces[0]) == 32
    assert RoleSecrets.none(Random(7)).cluster == ()
