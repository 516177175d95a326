package speaker

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/osrg/gobgp/v4/api"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// closesEarly is said of a peer that connects, and then does not.
const closesEarly = "the peer closes the connection before there is a session: it may not have this node as a peer"

// unreadable is said of a peer that says something of its routes that cannot be read.
const unreadable = "this node closed the session: it cannot read which routes a message is about"

// spoken reports whether a reason is what one end has told the other.
func spoken(reason string) bool {
	return strings.Contains(reason, "(notification ") || strings.HasPrefix(reason, "wrong AS")
}

// hearing reads what a line of the server's log says of a session that ends, or does not come.
func hearing(r slog.Record) (heard, bool) {
	attrs := map[string]slog.Value{}
	read := func() {
		r.Attrs(func(a slog.Attr) bool { attrs[a.Key] = a.Value; return true })
	}
	switch r.Message {
	case "failed to connect":
		read()
		return heard{text: connectText(attrs["Error"].String())}, true
	case "outgoing connection IO error":
		return heard{text: closesEarly, vague: true}, true
	case "Mismatched local address":
		read()
		return heard{text: fmt.Sprintf("the peer connects to %s, and the session is to be from %s: change its neighbor, or this end's source address", attrs["Addr"], attrs["Configured addr"])}, true
	case "hold timer expired":
		return heard{text: "hold timer expired: nothing was heard of the peer"}, true
	case "received notification":
		read()
		return heard{text: "the peer closed the session: " + notification(attrs)}, true
	case "the received Update message was treated as withdraw":
		read()
		return heard{text: unreadable}, overrun(attrs["Error"].String())
	case "sent notification":
		read()
		code, subcode := number(attrs["Code"]), number(attrs["Subcode"])
		vague := code == gobgp.BGP_ERROR_FSM_ERROR || code == gobgp.BGP_ERROR_OPEN_MESSAGE_ERROR && subcode == gobgp.BGP_ERROR_SUB_BAD_PEER_AS
		return heard{text: "this node closed the session: " + notification(attrs), vague: vague}, true
	}
	return heard{}, false
}

// overrun reports whether an error of an UPDATE is an attribute that ends behind the last one's
// end: the server (gobgp v4.8.0) does not read the routes that follow it, and withdraws none of
// them.
func overrun(err string) bool {
	return slices.ContainsFunc([]string{
		"attribute header length is short", "attribute value length is short", "attribute length is short", "exceeds path attributes boundary",
	}, func(part string) bool { return strings.Contains(err, part) })
}

// connectText says why there is no connection.
func connectText(err string) string {
	what := "the connection fails: " + err
	switch {
	case strings.Contains(err, "i/o timeout"):
		what = "no answer to the attempt to connect: the peer is away, packets are dropped on the way, or the MD5 passwords differ"
	case strings.Contains(err, "connection refused"):
		what = "connection refused: no BGP speaker listens there"
	case strings.Contains(err, "connection reset"):
		what = "connection reset: a firewall, or a speaker that does not have this node as a peer"
	case strings.Contains(err, "no route to host"):
		what = "no route to host: the peer is away, or no route leads to it"
	case strings.Contains(err, "network is unreachable"):
		what = "network is unreachable: this node has no route to the peer"
	case strings.Contains(err, "cannot assign requested address"):
		what = "this node does not have the address that the session is to be opened from"
	}
	return what
}

// endOf says why a session ended.
func endOf(reason api.PeerState_DisconnectReason, closing string) string {
	text := map[api.PeerState_DisconnectReason]string{
		api.PeerState_DISCONNECT_REASON_ADMIN_DOWN:            "administratively down",
		api.PeerState_DISCONNECT_REASON_HOLD_TIMER_EXPIRED:    "hold timer expired: nothing was heard of the peer",
		api.PeerState_DISCONNECT_REASON_READ_FAILED:           "the peer closed the connection without a word",
		api.PeerState_DISCONNECT_REASON_WRITE_FAILED:          "the connection broke",
		api.PeerState_DISCONNECT_REASON_GRACEFUL_RESTART:      "the connection broke, or the peer closed it without a word",
		api.PeerState_DISCONNECT_REASON_INVALID_MSG:           "a message that BGP does not allow",
		api.PeerState_DISCONNECT_REASON_DECONFIGURED:          "its configuration changed",
		api.PeerState_DISCONNECT_REASON_BAD_PEER_AS:           "wrong AS",
		api.PeerState_DISCONNECT_REASON_NOTIFICATION_SENT:     "this node closed the session",
		api.PeerState_DISCONNECT_REASON_NOTIFICATION_RECEIVED: "the peer closed the session",
	}[reason]
	if closing != "" {
		text = closing
	}
	if reason == api.PeerState_DISCONNECT_REASON_GRACEFUL_RESTART {
		text += "; its routes stay for its graceful restart"
	}
	return text
}

// notification names the error of a notification.
func notification(attrs map[string]slog.Value) string {
	code, subcode := number(attrs["Code"]), number(attrs["Subcode"])
	text := notificationText(code, subcode)
	if said := attrs["Communicated-Reason"]; said.Kind() == slog.KindString && said.String() != "" {
		text += fmt.Sprintf(", it says %q", said.String())
	}
	return text
}

func number(v slog.Value) uint8 {
	if v.Kind() != slog.KindInt64 {
		return 0
	}
	return uint8(v.Int64())
}

// notificationText names a code and subcode of RFC 4271 and RFC 4486.
func notificationText(code, subcode uint8) string {
	number := fmt.Sprintf(" (notification %d/%d)", code, subcode)
	switch {
	case code == gobgp.BGP_ERROR_OPEN_MESSAGE_ERROR && subcode == gobgp.BGP_ERROR_SUB_BAD_PEER_AS:
		return "wrong AS" + number
	case code == gobgp.BGP_ERROR_HOLD_TIMER_EXPIRED:
		return "hold timer expired" + number
	}
	codes := map[uint8]string{1: "message header error", 2: "OPEN message error", 3: "UPDATE message error", 4: "hold timer expired",
		5: "finite state machine error", 6: "cease", 7: "route refresh error"}
	text := codes[code]
	if text == "" {
		text = "unknown error"
	}
	if names := subcodes[code]; int(subcode) < len(names) && names[subcode] != "" {
		text += ", " + names[subcode]
	}
	return text + number
}

// subcodes are those of the codes that have them.
var subcodes = map[uint8][]string{
	1: {"", "connection not synchronized", "bad message length", "bad message type"},
	2: {"", "unsupported version", "wrong AS", "bad BGP identifier: it may be that of this node", "unsupported optional parameter",
		"authentication failure", "unacceptable hold time", "unsupported capability"},
	3: {"", "malformed attribute list", "unknown well-known attribute", "well-known attribute missing", "attribute flags error",
		"attribute length error", "invalid origin", "AS loop", "invalid next hop", "optional attribute error", "invalid prefix", "malformed AS path"},
	5: {"", "unexpected message in OpenSent", "unexpected message in OpenConfirm", "unexpected message in Established"},
	6: {"", "too many prefixes", "administratively shut down", "it no longer has this node as a peer", "administratively reset",
		"connection rejected", "its configuration changed", "two connections at once", "out of resources", "hard reset", "BFD down"},
}
