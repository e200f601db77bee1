"""The commands: one module per noun.

bench         `holdfast bench`
dr            `holdfast dr`
group         `holdfast group`
index         `holdfast index`
message       `holdfast message`
move          `holdfast move`
pipeline      `holdfast pipeline`
profile       `holdfast profile`
queue         `holdfast queue`
send          `holdfast send`
serve         `holdfast serve namesrv` and `holdfast serve broker`
static_topic  The verbs of `holdfast topic` that are about static topics
tail          `holdfast tail`
topic         `holdfast topic`
up            `holdfast up`
broker        `holdfast broker`
cluster       `holdfast cluster`
"""
