"""Every asyncio class has a blocking twin with the same methods, the same parameters, and no coroutines."""

import inspect
from typing import Any, get_type_hints

import pytest

import holdfast
from holdfast import blocking
from holdfast.client import producer, pull_consumer, push_consumer
from holdfast.client.access.credentials_options import CredentialsArguments

TWINS = {
    holdfast.Producer: blocking.Producer,
    holdfast.PushConsumer: blocking.PushConsumer,
    holdfast.PullConsumer: blocking.PullConsumer,
    holdfast.Transaction: blocking.Transaction,
}
OPTIONS = {
    holdfast.Producer: (blocking.ProducerOptions, producer),
    holdfast.PushConsumer: (blocking.PushOptions, push_consumer),
    holdfast.PullConsumer: (blocking.PullOptions, pull_consumer),
}
DUNDERS = {"__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__"}
# For callers that bring their own kind of future, as the blocking producer does.
HOOKS = {"hand_over", "hand_over_soon"}


def public_names(kind: type) -> set[str]:
    """Return what a user of *kind* sees, under the names of the blocking world."""
    own = {name for name in vars(kind) if not name.startswith("_")}
    return (own | {DUNDERS.get(name, name) for name in vars(kind) if name in {*DUNDERS, *DUNDERS.values()}}) - HOOKS


def parameters(function: Any) -> list[tuple[str, object, object]]:
    """Return name, kind and default of each."""
    return [(each.name, each.kind, each.default) for each in inspect.signature(function).parameters.values()]


def test_every_asyncio_class_has_a_twin():
    """One that is added later needs one, too. `ClusterClient` is for tools, which are asyncio."""
    classes = {getattr(holdfast, name) for name in holdfast.__all__ if name not in {"blocking", "ClusterClient"}}
    asynchronous = {
        kind
        for kind in classes
        if inspect.isclass(kind) and any(inspect.iscoroutinefunction(member) for member in vars(kind).values())
    }

    assert asynchronous == set(TWINS)


@pytest.mark.parametrize("kind", TWINS)
def test_twins_have_the_same_members(kind: type):
    """Methods and properties."""
    twin = TWINS[kind]

    assert public_names(twin) == public_names(kind)
    for name in public_names(kind) - set(DUNDERS.values()):
        assert isinstance(vars(twin)[name], property) == isinstance(vars(kind)[name], property), name


@pytest.mark.parametrize("kind", TWINS)
def test_twins_take_the_same_arguments(kind: type):
    """Names, order, kinds and defaults."""
    twin = TWINS[kind]
    for name, member in vars(kind).items():
        if name.startswith("_") or isinstance(member, property) or name in HOOKS:
            continue
        assert parameters(vars(twin)[name]) == parameters(member), name


@pytest.mark.parametrize("kind", OPTIONS)
def test_twins_are_made_with_the_same_options(kind: type):
    """The options of the blocking ones are a typed dictionary: names and types."""
    options, module = OPTIONS[kind]
    signature = inspect.signature(kind)
    keywords = {each.name for each in signature.parameters.values() if each.kind is each.KEYWORD_ONLY}
    hints = get_type_hints(kind.__init__, vars(module))

    named = {name: hints[name] for name in keywords} | get_type_hints(CredentialsArguments)
    assert named == get_type_hints(options)
    positional = [each for each in parameters(kind) if each[0] not in {*keywords, "access"}]
    assert [each for each in parameters(TWINS[kind]) if each[0] != "options"] == positional


@pytest.mark.parametrize("kind", TWINS)
def test_nothing_of_a_blocking_twin_has_to_be_awaited(kind: type):
    """Neither the methods nor, as far as annotations tell, their results."""
    for name, member in vars(TWINS[kind]).items():
        function = member.fget if isinstance(member, property) else member
        if not inspect.isfunction(function):
            continue
        assert not inspect.iscoroutinefunction(function), name
        assert not inspect.isasyncgenfunction(function), name
        returned = str(function.__annotations__.get("return", ""))
        assert not any(word in returned for word in ("Awaitable", "Coroutine", "Async", "asyncio", "async_")), name
