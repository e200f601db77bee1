"""The command line `holdfast NOUN VERB`. It parses arguments, calls `holdfast.admin` or the client, and prints results.

The commands are in `commands/`, one module per noun; the modules here hold their shared parts.

    help_style           the style of all help texts
    broker_keys          the meaning of the keys under which brokers report figures and settings
    progress             progress bars on standard error
    profiles             saved clusters, and which name server a command uses
    shared_options       options that several commands share
    credentials          the user that a command acts as
    completion           shell completion of topics, groups and brokers
    arguments            arguments and options that several nouns share
    certificates         an authority that signs certificates for development
    secret_files         new secrets, and files that only their owner can read
    session              `Session`: connection, output and confirmation for commands that talk to a cluster
    queue_position_text  parse times and offsets that users type
    message_text         print one message as a line, as JSON, or as its body
    local_access         users and secrets of `holdfast up --auth`
    local_console        the console of `holdfast up`
    move_output          output of the commands that move queues
    commands/            the commands, one module per noun
    main                 the entry point `holdfast`: loads the noun, maps errors to exit statuses
"""
