"""A folder, served over HTTP under a path of its own."""

import contextlib
import functools
import http.server
import threading


class UnderPath(http.server.SimpleHTTPRequestHandler):
    """Serves a folder at /sub/path/ and nothing above it, as project pages of a host do."""

    prefix = "/sub/path"

    def do_GET(self):
        if not self.path.startswith(self.prefix + "/"):
            return self.send_error(404)
        self.path = self.path.removeprefix(self.prefix)
        return super().do_GET()

    def log_message(self, *args):
        pass


class Quiet(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *args):
        """A browser may close a connection early."""


@contextlib.contextmanager
def serve(folder):
    """Where the folder answers over HTTP, without a slash at the end."""
    with Quiet(("127.0.0.1", 0), functools.partial(UnderPath, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}{UnderPath.prefix}"
        finally:
            server.shutdown()
            thread.join()
