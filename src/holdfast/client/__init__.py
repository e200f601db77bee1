"""The client library: producers and consumers. What users need is in `holdfast` itself.

Pure modules decide: which queue, which retry, what to pull, what to commit. The others are asyncio shells around them:
`cluster_client`, `sender`, `producer`, `transaction`, `group_member`, `queue_reader`, `push_consumer`, `pull_consumer`.
"""
