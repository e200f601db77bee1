"""Frames and commands of RocketMQ's remoting protocol, and the encodings they are made of.

codes      Request and response codes
host       Host and port as records and message ids hold them
fields     Custom headers
java_json  JSON as Java peers write it (fastjson 1.x), which is not always JSON
versions   The versions of RocketMQ that peers claim to speak
frame      Cut a byte stream into frames
command    One request or response
"""
