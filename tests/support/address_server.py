"""An HTTP server that tells clients who the name servers are."""

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class AddressServer:
    """An HTTP server that says *body*."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.status = 200
        self.requested_paths: list[str] = []
        self.url = ""


@contextmanager
def an_address_server(body: bytes, context: ssl.SSLContext | None = None) -> Iterator[AddressServer]:
    """Serve *body* while the block lasts, by TLS if there is a *context*."""
    server = AddressServer(body)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.requested_paths.append(self.path)
            self.send_response(server.status)
            self.send_header("Content-Length", str(len(server.body)))
            self.end_headers()
            self.wfile.write(server.body)

        def log_request(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        base_url = "http://127.0.0.1"
        if context is not None:
            base_url = "https://localhost"
            http.socket = context.wrap_socket(http.socket, server_side=True, do_handshake_on_connect=False)
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        server.url = f"{base_url}:{http.server_port}/rocketmq/nsaddr?unit=a"
        try:
            yield server
        finally:
            http.shutdown()
            thread.join()
