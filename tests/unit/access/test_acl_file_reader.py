"""ACL 1.0 files as RocketMQ's users write them."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.access import acl_file_reader
from holdfast.access.acl_file_reader import FILE_SIZE_MAX, LIST_MAX, read_acl_files
from holdfast.model.access.acl_file import DENY, AclAccount, AclFile, Perm
from holdfast.model.access.source_address import parse_white_address
from holdfast.model.errors import ConfigError

# The file that RocketMQ 4.9 ships, shortened.
SHIPPED = b"""
# comments are allowed
globalWhiteRemoteAddresses:
  - 10.10.103.*
  - 192.168.0.{1,2}

accounts:
  - accessKey: RocketMQ
    secretKey: 12345678
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - topicA=DENY
      - topicB=PUB|SUB
      - topicC = SUB
    groupPerms:
      # the group should convert to retry topic
      - groupA=DENY
      - "%RETRY%groupB=PUB|SUB"

  - accessKey: rocketmq2
    secretKey: 'open-sesame'
    whiteRemoteAddress: 192.168.1.*
    # if it is admin, it could access all resources
    admin: true
dataVersion:
- counter: 2
  timestamp: 1600000000000
"""


def read(*texts: str | bytes) -> AclFile:
    """Read files named a.yml, b.yml and so on."""
    return read_acl_files(
        (f"{chr(97 + number)}.yml", text if isinstance(text, bytes) else text.encode())
        for number, text in enumerate(texts)
    )


def an_account(lines: str = "", name: str = "RocketMQ") -> str:
    return f"accounts:\n- accessKey: {name}\n  secretKey: open-sesame\n  " + lines.replace("\n", "\n  ")


def test_the_file_that_rocketmq_ships_is_read():
    """Numbers may be secrets, groups may be written as retry topics, and unknown fields are ignored."""
    file = read(SHIPPED)

    assert list(map(str, file.global_white)) == ["10.10.103.*", "192.168.0.{1,2}"]
    assert file.accounts["RocketMQ"] == AclAccount(
        access_key="RocketMQ",
        secret_key="12345678",
        default_group=Perm(sub=True),
        topics={"topicA": DENY, "topicB": Perm(pub=True, sub=True), "topicC": Perm(sub=True)},
        groups={"groupA": DENY, "groupB": Perm(pub=True, sub=True)},
    )
    assert file.accounts["rocketmq2"] == AclAccount(
        access_key="rocketmq2",
        secret_key="open-sesame",
        white_address=parse_white_address("192.168.1.*"),
        is_admin=True,
    )
    assert file.warnings == ()


def test_the_first_definition_of_an_account_counts():
    """In one file and in several. White addresses of all files count."""
    first = "globalWhiteRemoteAddresses: [1.1.1.1]\n" + an_account("admin: true")
    second = (
        "globalWhiteRemoteAddresses: [2.2.2.2]\n"
        + an_account("admin: false")
        + "\n- accessKey: another\n  secretKey: open-sesame"
    )
    second += "\n- accessKey: another\n  secretKey: other-sesame"

    file = read(first, second)

    assert list(file.accounts) == ["RocketMQ", "another"]
    assert file.accounts["RocketMQ"].is_admin
    assert file.accounts["another"].secret_key == "open-sesame"
    assert list(map(str, file.global_white)) == ["1.1.1.1", "2.2.2.2"]
    assert file.warnings == (
        "b.yml: the account another is defined before; this one, number 3, is ignored",
        "b.yml: the account RocketMQ is defined before; this one is ignored",
    )


@pytest.mark.parametrize("lines", ["defaultTopicPerm: pub", "defaultGroupPerm: ANY", "topicPerms: [t=ALL]"])
def test_an_unknown_permission_is_none_and_a_warning(lines: str):
    """As in RocketMQ, which does not warn."""
    file = read(an_account(lines))

    assert not any(
        rule.effect.value == "Allow" and "TRACE" not in str(rule) for rule in file.accounts["RocketMQ"].to_rules()
    )
    (warning,) = file.warnings
    assert warning.startswith("a.yml: account RocketMQ, field ")
    assert "is no permission and counts as DENY" in warning


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is empty; a file that shall define nothing contains 'accounts: "),
        ("# nothing", "it is empty"),
        ("[]", "it has no fields"),
        ("accounts: 1", "accounts is no list of at most 5000"),
        ("accounts: [1]", "account 1 has no fields"),
        ("accounts: [{}]", "account 1, field accessKey: it has 0 characters, at least 7 are needed"),
        ("accounts: [{accessKey: [RocketMQ]}]", "account 1, field accessKey: the value is no text; put it in quotes"),
        ("accounts: [{accessKey: RocketMQ, secretKey: sesame}]", "account RocketMQ, field secretKey: it has 6 char"),
        (
            "accounts: [{accessKey: RocketMQ, secretKey: 1.5}]",
            "account RocketMQ, field secretKey: the value is no text",
        ),
        ("accounts: [{accessKey: RocketMQ, secretKey: true}]", "field secretKey: the value is no text"),
        (
            "accounts: [{accessKey: RocketMQ, secretKey: open sesame}]",
            "account RocketMQ, field secretKey: the password contains spaces",
        ),
        (an_account(name="holdfast.cluster"), "account 1, field accessKey: the user name .* is reserved"),
        (
            an_account("whiteRemoteAddress: 1.2.3"),
            "account RocketMQ, field whiteRemoteAddress: '1.2.3' is no white address",
        ),
        (an_account("whiteRemoteAddress: [1.2.3.4]"), "field whiteRemoteAddress: the value is no text"),
        (an_account("admin: 1"), "account RocketMQ, field admin: write true or false"),
        (an_account("topicPerms: [t]"), "account RocketMQ, field topicPerms: 't' is not NAME=PERM"),
        (an_account("topicPerms: [t=PUB=SUB]"), "'t=PUB=SUB' is not NAME=PERM"),
        (an_account("groupPerms: [=PUB]"), "field groupPerms: '=PUB' is not NAME=PERM"),
        (an_account("topicPerms: ['*=PUB']"), "'\\*' has a '\\*', but ACL 1.0 knows whole names only"),
        (an_account(f"topicPerms: [{'t' * 256}=PUB]"), "a name has 256 characters"),
        (an_account("topicPerms: t=PUB"), f"field topicPerms: the value is no list of at most {LIST_MAX} texts"),
        (an_account("topicPerms: [[t=PUB]]"), "field topicPerms: the value is no list"),
        (an_account(f"topicPerms: [{'t=PUB,' * (LIST_MAX + 1)}]"), "field topicPerms: the value is no list"),
        ("globalWhiteRemoteAddresses: [1.2.3.x]", "globalWhiteRemoteAddresses: '1.2.3.x' is no white address"),
        ("globalWhiteRemoteAddresses: 1.2.3.4", "globalWhiteRemoteAddresses: the value is no list"),
        ("globalWhiteRemoteAddresses:\n- *", "it is no YAML: line 2: "),
        ("accounts: [\n}", "it is no YAML: line 2: did not find expected node content"),
        ("a: &a {b: 1}\nc: {<<: *a}", "line 2 has an alias; write the value again, or put it in quotes"),
        ("a: !!python/object/apply:os.system [x]", "line 1 has a tag or an unusable key; put a value that begins"),
        ("accounts: [{accessKey: RocketMQ, secretKey: !sesame }]", "line 1 has a tag"),
        ("? [a]\n: b", "line 1 has a tag or an unusable key"),
        (
            an_account(name='"Rocket\\nMQ"') + "topicPerms: [t]",
            r"account 1, field accessKey: the user name 'Rocket\\nMQ'",
        ),
        ("accounts: [{accessKey: RocketMQ, secretKey: *sesame}]", "line 1 has an alias"),
        ("a: !!int ''", "it is no YAML that can be read"),
        ("a: !!timestamp x", "it is no YAML that can be read"),
        ("a: " + "9" * 5000, "line 1 has a value of more than 4096 characters"),
        ("a: 1" + ":59" * 300_000, "line 1 has a value of more than 4096 characters"),
        ("accounts: [{accessKey: RocketMQ, secretKey: 0x" + "f" * 4000 + "}]", "secretKey: the value is no text"),
        (b"\xff\xfe\xff", "it is no YAML that can be read"),
        ("[" * 100_000, "line 1 is nested deeper than 16"),
        ("x" * (FILE_SIZE_MAX + 1), f"it has {FILE_SIZE_MAX + 1} bytes, at most {FILE_SIZE_MAX} are read"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_an_error_names_the_file_the_account_and_the_field(text: str | bytes, why: str):
    """But no secret: it is logged."""
    with pytest.raises(ConfigError, match=rf"^the ACL file b\.yml cannot be used: .*{why}") as error:
        read(SHIPPED, text)

    assert "sesame" not in str(error.value)
    assert error.value.__cause__ is None
    assert error.value.__suppress_context__


def test_there_is_an_end_to_accounts(monkeypatch: pytest.MonkeyPatch):
    """A file comes from an administrator, but may be the wrong one."""
    monkeypatch.setattr(acl_file_reader, "ACCOUNTS_MAX", 1)

    with pytest.raises(ConfigError, match="no list of at most 1 accounts"):
        read(SHIPPED)


def test_no_files_have_no_accounts():
    """Not an error: the folder may be empty."""
    assert read() == AclFile()


@given(st.binary(max_size=60) | st.text("accounts: [{}]\n-&*!<'\"|>%@`#,~0x.", max_size=60).map(str.encode))
def test_no_file_breaks_the_reader(data: bytes):
    """It is read, or refused by name."""
    with contextlib.suppress(ConfigError):
        assert read(data).accounts == {}
