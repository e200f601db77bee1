"""The command line: one file per noun. Parses, asks `holdfast.admin` or the client, prints. Decides nothing else."""
