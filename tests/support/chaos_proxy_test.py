#!/usr/bin/env python3
"""The chaos proxy does what it is told. Lower bounds of time are what it promises; upper bounds are deadlines only."""
import pathlib
import socket
import subprocess
import sys
import threading
import time
import unittest

PROXY = str(pathlib.Path(__file__).with_name("chaos_proxy.py"))
PATIENCE = 60


class ChaosProxy:
    def __init__(self, port):
        self.process = subprocess.Popen([sys.executable, PROXY, f"127.0.0.1:{port}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline().split()[1])

    def tell(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def end(self):
        self.process.stdin.close()
        code = self.process.wait(timeout=PATIENCE)
        self.process.stdout.close()
        return code


class ProxyTest(unittest.TestCase):
    def setUp(self):
        self.server = socket.create_server(("127.0.0.1", 0))
        self.server.settimeout(PATIENCE)
        self.proxy = ChaosProxy(self.server.getsockname()[1])
        self.addCleanup(self.server.close)
        self.ends = []

    def tearDown(self):
        for end in self.ends:
            end.close()
        self.assertEqual(self.proxy.end(), 0)

    def client(self):
        client = socket.create_connection(("127.0.0.1", self.proxy.port))
        client.settimeout(PATIENCE)
        self.ends.append(client)
        return client

    def pair(self):
        client = self.client()
        target, _ = self.server.accept()
        target.settimeout(PATIENCE)
        self.ends.append(target)
        return client, target

    def tell(self, command):
        self.assertEqual(self.proxy.tell(command), "ok " + command)

    def receive(self, end, count):
        data = b""
        while len(data) < count:
            piece = end.recv(count - len(data))
            if not piece:
                break
            data += piece
        return data

    def assert_silent(self, end):
        end.settimeout(0.3)
        with self.assertRaises(TimeoutError):
            end.recv(1)
        end.settimeout(PATIENCE)

    def test_bytes_pass_both_ways_unchanged(self):
        client, target = self.pair()
        data = bytes(range(256)) * 8000
        sender = threading.Thread(target=lambda: (client.sendall(data), client.shutdown(socket.SHUT_WR)))
        sender.start()
        self.assertEqual(self.receive(target, len(data) + 1), data)
        sender.join()
        target.sendall(b"answer")
        target.close()
        self.assertEqual(self.receive(client, 100), b"answer")
        self.assertEqual(self.proxy.tell("stats"), f"ok connections=1 up={len(data)} down=6")

    def test_a_delay_holds_one_direction_and_keeps_order(self):
        client, target = self.pair()
        self.tell("delay up 300 100")
        begin = time.monotonic()
        for i in range(20):
            client.sendall(bytes([i]))
        self.assertEqual(self.receive(target, 20), bytes(range(20)))
        self.assertGreaterEqual(time.monotonic() - begin, 0.19)

    def test_a_stall_lasts_until_it_is_resumed(self):
        client, target = self.pair()
        self.tell("stall up")
        client.sendall(b"up")
        target.sendall(b"down")
        self.assertEqual(self.receive(client, 4), b"down")
        self.assert_silent(target)
        self.tell("resume up")
        self.assertEqual(self.receive(target, 2), b"up")

    def test_a_stall_fills_the_senders_buffers(self):
        client, target = self.pair()
        self.tell("stall up")
        client.settimeout(1)
        with self.assertRaises(TimeoutError):
            for _ in range(1000):
                client.sendall(bytes(1 << 20))

    def test_a_throttle_limits(self):
        client, target = self.pair()
        self.tell("throttle down 200000")
        begin = time.monotonic()
        sender = threading.Thread(target=target.sendall, args=(bytes(200_000),))
        sender.start()
        self.assertEqual(len(self.receive(client, 200_000)), 200_000)
        sender.join()
        self.assertGreaterEqual(time.monotonic() - begin, 0.8)

    def test_a_half_close_leaves_the_other_direction(self):
        client, target = self.pair()
        self.tell("half-close up")
        self.assertEqual(target.recv(1), b"")
        target.sendall(b"still here")
        self.assertEqual(self.receive(client, 10), b"still here")

    def test_a_cut_resets_both_ends(self):
        client, target = self.pair()
        client.sendall(b"x")
        self.receive(target, 1)
        self.tell("cut")
        for end in (client, target):
            with self.assertRaises(ConnectionResetError):
                end.recv(1)
        client, target = self.pair()
        client.sendall(b"again")
        self.assertEqual(self.receive(target, 5), b"again")

    def test_held_connections_go_on_when_released(self):
        self.tell("hold")
        client = self.client()
        client.sendall(b"early")
        self.server.settimeout(0.3)
        with self.assertRaises(TimeoutError):
            self.server.accept()
        self.server.settimeout(PATIENCE)
        self.tell("release")
        target, _ = self.server.accept()
        self.ends.append(target)
        self.assertEqual(self.receive(target, 5), b"early")

    def test_refused_connections_are_reset(self):
        self.tell("refuse")
        with self.assertRaises(ConnectionError):
            client = self.client()
            client.sendall(b"x")
            if client.recv(1) == b"":
                raise AssertionError("closed, not reset")
        self.tell("accept")
        self.pair()

    def test_one_bit_is_flipped_where_it_was_asked(self):
        client, target = self.pair()
        client.sendall(b"abc")
        self.assertEqual(self.receive(target, 3), b"abc")
        self.tell("corrupt up 4")
        client.sendall(bytes(10))
        self.assertEqual(self.receive(target, 10), bytes([0, 0, 0, 0, 1, 0, 0, 0, 0, 0]))

    def test_clear_ends_what_holds(self):
        client, target = self.pair()
        for command in ("stall both", "throttle both 1", "delay both 60000", "hold", "refuse", "clear"):
            self.tell(command)
        client.sendall(b"through")
        self.assertEqual(self.receive(target, 7), b"through")

    def test_a_target_that_is_not_there_resets_the_client(self):
        self.server.close()
        with self.assertRaises(ConnectionError):
            client = self.client()
            client.recv(1)
            client.sendall(b"x")
            client.recv(1)

    def test_a_wrong_command_is_an_error_and_nothing_more(self):
        for command in ("nonsense", "delay", "delay up", "delay sideways 1", "delay up x", "delay up -1", "delay up nan", "stall", "cut now",
                        "throttle up 1 2"):
            self.assertTrue(self.proxy.tell(command).startswith("error "), command)
        self.pair()


if __name__ == "__main__":
    unittest.main()
