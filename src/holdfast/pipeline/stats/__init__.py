"""The job `stats`: what a log contains.

histogram  How often numbers were how large
counts     Counts one range of a log for `stats`
stats_job  `stats`
"""
