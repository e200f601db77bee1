"""Operations on a cluster, as a library: what the command line does, without its printing."""
