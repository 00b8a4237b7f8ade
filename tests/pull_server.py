"""A small HTTP server on loopback for pull_test.sh; prints its port, then serves until it is killed.

Each path is a way to misbehave; the file behind all of them is 300,000 bytes of a fixed pattern.
"""
import http.server

DATA = bytes((i * i // 7 + i) % 251 for i in range(300_000))
seen = {}  # path -> requests so far


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        path = self.path
        n = seen[path] = seen.get(path, 0) + 1
        way = path.split("/")[1]
        if way == "requests":  # /requests/PATH: how often PATH was asked for
            return self.send(str(seen.get("/" + path[10:], 0)).encode(), 200)
        if way == "resolve":
            way = "plain"
        if way == "missing":
            return self.send(b"no", 404)
        if way == "busy" and n < 3:
            return self.send(b"later", 503)
        if way == "redirect":
            return self.send(b"", 302, {"Location": f"http://127.0.0.1:{PORT}/plain/x"})
        data, tag = DATA, '"one"'
        if way == "changes" and n > 1:  # another file behind the same address
            data, tag = DATA[::-1], '"two"'
        begin, status, headers = 0, 200, {"ETag": tag}
        asked = self.headers.get("Range")
        if asked and way != "no-ranges" and self.headers.get("If-Range", tag) == tag:
            begin = int(asked.split("=")[1].split("-")[0])
            status = 206
            headers["Content-Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
        cut = None
        if way in ("cut", "changes", "no-ranges") and n == 1:
            cut = 100_000
        if way == "always-cut":
            cut = 0 if n > 1 else 100_000
        self.send(data[begin:], status, headers, cut)

    def send(self, body, status, headers=None, cut=None):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body[:cut])
        self.close_connection = cut is not None


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
PORT = server.server_address[1]
print(PORT, flush=True)
server.serve_forever()
