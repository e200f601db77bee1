"""Resources and permissions."""

from holdfast.model.access.resource import Resource, ResourceType


def test_a_resource_is_written_as_in_rules():
    """Refusals name resources in the form in which rules are given."""
    assert str(Resource(ResourceType.TOPIC, "orders")) == "Topic:orders"
