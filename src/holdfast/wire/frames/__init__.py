"""Frames and commands of RocketMQ's remoting protocol, and the encodings of their headers and bodies.

A *frame* is a delimited run of bytes. A *command* is the request or response decoded from it.

    codes        request and response codes, and the protocol version that we announce
    versions     conversion of RocketMQ version numbers to text
    host         host and port as records and message ids store them
    fields       custom headers: structs to text fields and back
    java_json    a decoder for fastjson 1.x output, which is not always valid JSON
    frame        splitting a byte stream into frames
    command      one request or response, in the JSON or the binary header encoding
"""
