"""Have sluice-bgp hear what BGP does not allow: see hack/fuzz-bgp.

Forty peers open sessions again and again, and send in them what scapy makes of its definitions of
BGP: messages with random fields, and sound ones of which bytes are corrupted, cut off or doubled.
One more peer behaves, and its session has to last.
"""

import argparse
import collections
import logging
import random
import socket
import struct
import threading
import time

logging.getLogger("scapy").setLevel(logging.ERROR)

from scapy.all import CorruptedBits, CorruptedBytes, fuzz, raw  # noqa: E402
from scapy.contrib import bgp  # noqa: E402

bgp.bgp_module_conf.use_2_bytes_asn = False
logging.getLogger("scapy").setLevel(logging.ERROR)

KEEPALIVE = raw(bgp.BGPKeepAlive())
OPEN, UPDATE, NOTIFICATION, KEEPALIVE_TYPE, REFRESH = 1, 2, 3, 4, 5
PAUSE = 5.1  # seconds; the speaker lets a peer in again only some time after an error


def message(kind, body):
    return b"\xff" * 16 + struct.pack("!HB", 19 + len(body), kind) + body


def opening(address, asn):
    capabilities = [
        bgp.BGPCapMultiprotocol(afi=1, safi=1), bgp.BGPCapMultiprotocol(afi=2, safi=1), bgp.BGPCapFourBytesASN(asn=asn),
        bgp.BGPCapGeneric(code=2), bgp.BGPCapGeneric(code=70), bgp.BGPCapGeneric(code=6),
    ]
    options = [bgp.BGPOptParam(param_type=2, param_value=c) for c in capabilities[: 3 + random.randrange(4)]]
    return raw(bgp.BGPHeader(type=OPEN) / bgp.BGPOpen(my_as=asn, hold_time=90, bgp_id=address, opt_params=options))


def attributes(address, asn):
    """All that a route needs, and some that it may have."""
    def attribute(flags, kind, value):
        return struct.pack("!BBH", flags | 0x10, kind, len(value)) + value

    def noise(size):
        return random.randbytes(size)

    needed = [attribute(0x40, 1, b"\0"), attribute(0x40, 2, struct.pack("!BBI", 2, 1, asn)), attribute(0x40, 3, socket.inet_aton(address))]
    family = struct.pack("!HB", random.choice([1, 2, 25, 16388]), random.choice([1, 2, 4, 5, 65, 70, 71, 85, 128, 132, 133]))
    others = [
        attribute(0x80, 4, noise(4)), attribute(0x40, 5, noise(4)), attribute(0x40, 6, b""), attribute(0xC0, 7, noise(8)),
        attribute(0xC0, 8, noise(4 * random.randrange(5))), attribute(0x80, 9, noise(4)), attribute(0x80, 10, noise(8)),
        attribute(0x80, 14, family + bytes([random.choice([0, 4, 12, 16, 24, 32])]) + noise(random.randrange(80))),
        attribute(0x80, 15, family + noise(random.randrange(60))), attribute(0xC0, 16, noise(16)), attribute(0xC0, 17, noise(10)),
        attribute(0xC0, 22, noise(9)), attribute(0xC0, 23, noise(random.randrange(30))), attribute(0x80, 26, noise(11)),
        attribute(0x80, 29, noise(random.randrange(60))), attribute(0xC0, 32, noise(24)), attribute(0xC0, 40, noise(random.randrange(40))),
        attribute(random.randrange(256) & 0xE0, random.randrange(256), noise(random.randrange(40))),
    ]
    return needed + random.sample(others, random.randrange(6))


def prefixes():
    out = b""
    for _ in range(random.randrange(1, 6)):
        bits = random.randrange(33)
        out += bytes([bits]) + random.randbytes((bits + 7) // 8)
    return out


def update(address, asn):
    parts = attributes(address, asn)
    if random.random() < 0.3:
        random.shuffle(parts)
    if random.random() < 0.1:
        parts.append(random.choice(parts))
    if random.random() < 0.1:
        parts.pop(random.randrange(len(parts)))
    path, gone = b"".join(parts), prefixes() if random.random() < 0.3 else b""
    return message(UPDATE, struct.pack("!H", len(gone)) + gone + struct.pack("!H", len(path)) + path + prefixes())


def corrupt(whole):
    """Changes a message, its length or header seldom."""
    head, body = whole[:19], whole[19:]
    if random.random() < 0.05:
        return bytes(CorruptedBytes(whole, n=2))
    at = random.randrange(len(body) + 1)
    body = random.choice([
        lambda: bytes(CorruptedBytes(body, n=1)) if body else body,
        lambda: bytes(CorruptedBits(body, n=3)) if body else body,
        lambda: body[:at],
        lambda: body[:at] + body[at + random.randrange(1, 8):],
        lambda: body[:at] + random.randbytes(random.randrange(1, 8)) + body[at:],
    ])()
    return message(head[18], body)


def something(address, asn):
    return random.choices([
        lambda: update(address, asn),
        lambda: corrupt(update(address, asn)),
        lambda: raw(bgp.BGPHeader(type=UPDATE) / fuzz(bgp.BGPUpdate())),
        lambda: corrupt(message(REFRESH, b"\0\1\0\1")),
        lambda: KEEPALIVE,
        lambda: message(random.choice([0, 1, NOTIFICATION, 6, 255]), random.randbytes(random.randrange(30))),
    ], weights=[70, 100, 6, 10, 13, 1])[0]()


def receive(connection):
    """Returns type and body of the next message."""
    def read(size):
        out = b""
        while len(out) < size:
            part = connection.recv(size - len(out))
            if not part:
                raise EOFError
            out += part
        return out

    length, kind = struct.unpack("!HB", read(19)[16:])
    return kind, read(length - 19)


class Run:
    def __init__(self, options):
        self.options, self.counts = options, collections.Counter()
        self.end, self.over, self.lost = time.monotonic() + options.seconds, threading.Event(), []

    def connect(self, address):
        connection = socket.socket()
        connection.settimeout(10)
        connection.bind((address, 0))
        connection.connect((self.options.target, 179))
        return connection

    def count(self, what, code=None):
        self.counts[what if code is None else "%s %d/%d" % (what, *code)] += 1

    def attack(self, address, asn):
        """One connection of a peer, with all that it does wrong."""
        with self.connect(address) as connection:
            if random.random() < 0.05:  # half a message, and silence
                connection.sendall(opening(address, asn)[: random.randrange(1, 40)])
                time.sleep(random.random())
                return
            good = random.random() < 0.75
            connection.sendall(opening(address, asn) if good else random.choice(
                [lambda: corrupt(opening(address, asn)), lambda: raw(bgp.BGPHeader(type=OPEN) / fuzz(bgp.BGPOpen()))])())
            self.count("OPENs")
            while (got := receive(connection))[0] != KEEPALIVE_TYPE:
                if got[0] == NOTIFICATION:
                    return self.count("OPEN: notification", got[1][:2])
            connection.sendall(KEEPALIVE)
            self.count("sessions")
            reader = threading.Thread(target=self.listen, args=(connection,))
            reader.start()
            try:
                for _ in range(random.randrange(5, 200)):
                    if not reader.is_alive() or self.over.is_set():
                        break
                    connection.sendall(something(address, asn))
                    self.count("messages in sessions")
                    if random.random() < 0.1:
                        time.sleep(0.02)
                time.sleep(0.2)
            finally:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
                reader.join()

    def listen(self, connection):
        try:
            while (got := receive(connection))[0] != NOTIFICATION:
                pass
            self.count("notification", got[1][:2])
        except (OSError, EOFError):
            pass

    def attacks(self, address, asn):
        while not self.over.is_set():
            try:
                self.attack(address, asn)
            except (OSError, EOFError):
                self.count("connections that the speaker closed")
            self.over.wait(PAUSE)

    def behave(self, address, asn):
        """A session that has to last."""
        try:
            with self.connect(address) as connection:
                connection.sendall(opening(address, asn))
                while not self.over.is_set():
                    connection.settimeout(1)
                    try:
                        kind, body = receive(connection)
                        if kind == NOTIFICATION:
                            raise EOFError("notification %d/%d" % tuple(body[:2]))
                    except TimeoutError:
                        pass
                    connection.sendall(KEEPALIVE)
        except Exception as e:  # whatever it is, the session is gone
            if not self.over.is_set():
                self.lost.append("the session with the peer that behaves ended: %r" % e)

    def memory(self):
        """Resident memory of the speaker in kB."""
        try:
            with open("/proc/%d/status" % self.options.pid) as status:
                return int(next(line for line in status if line.startswith("VmRSS")).split()[1])
        except (OSError, StopIteration):
            return None

    def run(self):
        threads = [threading.Thread(target=self.behave, args=(self.options.good, 65002))]
        threads += [threading.Thread(target=self.attacks, args=(a, 65001)) for a in self.options.bad]
        for t in threads:
            t.start()
        begin = self.memory()
        while time.monotonic() < self.end and not self.lost:
            time.sleep(0.5)
            if self.memory() is None:
                self.lost.append("sluice-bgp has ended")
        end = self.memory()
        self.over.set()
        for t in threads:
            t.join()
        for what, n in sorted(self.counts.items()):
            print("%8d  %s" % (n, what))
        print("resident memory: %s kB at first, %s kB at last" % (begin, end))
        return self.lost


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("target")
    parser.add_argument("good")
    parser.add_argument("bad", nargs="+")
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    random.seed(options.seed)
    lost = Run(options).run()
    if lost:
        raise SystemExit("\n".join(lost))


main()
