"""The job `stats`: counts the stored messages by topic, queue and time, and finds the most frequent keys and tags.

histogram   Histograms with classes of an eighth of a power of two
counts      Counts the messages in one range of a log
stats_job   Runs `stats` and reports the result
"""
