"""Requests that reach a leader by way of another broker."""

from __future__ import annotations

import pytest
from tests.support.access import Users, role_secrets
from tests.support.cluster.broker_machine import a_send
from tests.support.cluster.broker_machines import TOPIC, StaticBrokers
from tests.support.cluster.machine import codes

from holdfast.model.access.acl_file import AclFile
from holdfast.model.access.source_address import parse_white_address


@pytest.mark.parametrize("claimed", ["alice", "holdfast.cluster", ""])
def test_a_client_that_is_admitted_by_its_address_is_nobody_elsewhere(claimed: str) -> None:
    """One broker follows a file with white addresses. It must not vouch for a name that nobody has proven."""
    brokers = StaticBrokers("a", "b", auth=True, secrets=role_secrets())
    for broker in brokers.brokers.values():
        Users(broker).add("alice", "* All")
    brokers.create("a", "b")
    white = AclFile(global_white=(parse_white_address("10.0.0.1"),))
    brokers["a"].components.access_store.follow(white)
    sends = [a_send(TOPIC, queue=queue, opaque=queue + 1) for queue in (0, 1)]
    for send in sends:
        send.fields["AccessKey"] = claimed

    answers = brokers["a"].call(*sends)

    assert sorted((it.opaque, it.code) for it in answers) == [(1, 0), (2, 16)]
    assert brokers["b"].store.queue(TOPIC, 0).next_offset == 0
    assert codes(answers).count(0) == 1
