package importer

import (
	"encoding/hex"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// checkReader finds the health check of a service: a farm has one, keepalived one or more of each
// server.
type checkReader struct {
	notes   *notes
	service *service
	begun   bool // a server was read
}

// checkWords are the blocks of checks that a real_server may have: "" for those that we have, for
// others why they are left out.
var checkWords = map[string]string{
	"HTTP_GET": "", "SSL_GET": "", "TCP_CHECK": "", "UDP_CHECK": "", "PING_CHECK": "", "MISC_CHECK": "", "SMTP_CHECK": "",
	"DNS_CHECK":  "there is no check that asks a name server; give the farm a health-check of type command, or tcp with port 53",
	"BFD_CHECK":  "there is no BFD here",
	"FILE_CHECK": "no files are tracked; give the farm a health-check of type command",
}

// server reads the checks of one server. They go to its own port, also where packets do not.
func (c *checkReader) server(vs, rs *statement, r server) {
	var check *HealthCheck
	line := rs.line
	for _, s := range rs.block {
		if why, known := checkWords[s.word(0)]; !known || why != "" {
			continue
		}
		if check != nil {
			c.notes.add(s.line, s.text(), "left out: a farm has one health check, and this server has another one before it")
			continue
		}
		check, line = c.check(s, rs, vs), s.line
		if check.Port == "" && check.dials() && r.Port() != 0 && r.keepsPort(c.service.addrs) && r.portDiffers(c.service.addrs) {
			check.Port = strconv.Itoa(int(r.Port()))
		}
	}
	switch {
	case !c.begun:
		c.service.check, c.begun = check, true
	case check == nil && c.service.check != nil:
		c.notes.add(rs.line, rs.text(), "is checked like the first server: a farm has one health check for all its servers")
	case c.service.check == nil && check != nil:
		c.notes.add(line, rs.text(), "its health check is left out: a farm has one for all its servers, and the first server has none")
	case !reflect.DeepEqual(check, c.service.check):
		c.notes.add(line, rs.text(), "is checked like the first server, which may find it down: a farm has one health check for all its servers")
	}
}

// check reads one check. What it does not say itself, its server and its service say.
func (c *checkReader) check(s, rs, vs *statement) *HealthCheck {
	say := func(word string) *statement {
		for _, in := range []*statement{s, rs, vs} {
			if found := last(in.block, word); found != nil {
				return found
			}
		}
		return nil
	}
	h := &HealthCheck{Interval: c.time(say("delay_loop"), "60"), Timeout: c.time(say("connect_timeout"), "5"), Rise: "1"}
	retries := 1
	if s.word(0) == "MISC_CHECK" {
		retries = 0
	}
	retry := say("retry")
	if old := last(s.block, "nb_get_retry"); old != nil && last(s.block, "retry") == nil {
		retry = old
	}
	if retry != nil {
		if n, ok := number(retry.word(1), 100); ok {
			retries = n
		} else {
			c.notes.add(retry.line, retry.text(), "left out: it is no number up to 100")
		}
	}
	h.Fall = strconv.Itoa(retries + 1)
	if delay := say("delay_before_retry"); delay != nil && c.time(delay, "") != h.Interval {
		c.notes.once(delay.line, delay.text(), "left out: a failed check is repeated after the usual interval")
	}
	c.kind(h, s, rs, say)
	if seconds(h.Timeout) > seconds(h.Interval) {
		h.Timeout = h.Interval
		c.notes.once(s.line, s.text(), "its timeout becomes its interval (delay_loop): a check takes no longer than that")
	}
	return h
}

// seconds reads what time writes.
func seconds(text string) float64 {
	n, _ := strconv.ParseFloat(strings.TrimSuffix(text, "s"), 64)
	return n
}

// dials reports whether a check goes to a port.
func (h *HealthCheck) dials() bool { return h.Type != "icmp" && h.Type != "command" }

// kind fills in what is of one kind of check alone.
func (c *checkReader) kind(h *HealthCheck, s, rs *statement, say func(string) *statement) {
	known := map[string]string{}
	block := s.block
	switch s.word(0) {
	case "HTTP_GET", "SSL_GET":
		known = httpWords
		c.http(h, s, say)
	case "UDP_CHECK":
		known = udpWords
		c.udp(h, s)
	case "PING_CHECK":
		h.Type = "icmp"
	case "MISC_CHECK":
		known = miscWords
		c.command(h, s, rs)
	case "SMTP_CHECK":
		known = smtpWords
		h.Type = "tcp"
		c.notes.add(s.line, s.text(), "becomes a check of type tcp: what the mail server says is not read")
		if host := last(s.block, "host"); host != nil { // an older form
			block = append(block[:len(block):len(block)], host.block...)
		}
	default:
		h.Type = "tcp"
	}
	if port := last(block, "connect_port"); port != nil && h.dials() {
		if n, ok := number(port.word(1), 65535); ok && n > 0 {
			h.Port = strconv.Itoa(n)
		} else {
			c.notes.add(port.line, port.text(), "left out: it is no port")
		}
	}
	unheeded(c.notes, s.block, known, anyCheckWords)
}

// anyCheckWords are the words that every check may have.
var anyCheckWords = map[string]string{
	"connect_port": "", "connect_timeout": "", "delay_loop": "", "retry": "", "nb_get_retry": "", "delay_before_retry": "",
	"connect_ip":       "a check goes to the server's own address",
	"bindto":           "a check comes from the address that the route has",
	"bind_if":          "a check goes by the route",
	"bind_port":        "a check comes from any port",
	"fwmark":           "a check has no mark",
	"warmup":           "checks are spread over their interval anyway",
	"alpha":            "there is no such choice here",
	"log_all_failures": "changes of a server's state are logged, not each check",
}

var (
	httpWords = map[string]string{"url": "", "virtualhost": "",
		"http_protocol": "checks use HTTP/1.1", "fast_recovery": "a farm has one URL", "enable_sni": "the name in host is always sent",
		"tls_compliant": "there is no such choice here"}
	urlWords = map[string]string{"path": "", "status_code": "", "virtualhost": "",
		"digest":           "contents are not compared by digest; give body a part of the page that must be there",
		"regex":            "there are no regular expressions; give body a part of the page that must be there",
		"regex_no_match":   "there are no regular expressions",
		"regex_options":    "there are no regular expressions",
		"regex_stack":      "there are no regular expressions",
		"regex_min_offset": "there are no regular expressions",
		"regex_max_offset": "there are no regular expressions",
	}
	udpWords = map[string]string{"payload": "", "require_reply": "",
		"min_reply_length": "the length of an answer is not looked at", "max_reply_length": "the length of an answer is not looked at"}
	miscWords = map[string]string{"misc_path": "", "misc_timeout": "",
		"misc_dynamic": "an exit status is good (0) or bad; weights stay", "user": "commands run as the user that runs sluice"}
	smtpWords = map[string]string{"host": "", "helo_name": "what the mail server says is not read"}
)

// http reads the first URL of a check.
func (c *checkReader) http(h *HealthCheck, s *statement, say func(string) *statement) {
	h.Type, h.Method, h.Path, h.Status = "http", "GET", "/", "200-299"
	if s.word(0) == "SSL_GET" {
		h.Type, h.Insecure = "https", "on" // keepalived does not look at certificates
	}
	if host := say("virtualhost"); host != nil {
		h.Host = host.word(1)
	}
	read := false
	for _, url := range s.block {
		if url.word(0) != "url" {
			continue
		}
		if read {
			c.notes.add(url.line, "url "+path(url), "left out: a farm's health check has one URL, the first")
			continue
		}
		read, h.Path = true, path(url)
		if host := last(url.block, "virtualhost"); host != nil {
			h.Host = host.word(1)
		}
		if status := last(url.block, "status_code"); status != nil {
			h.Status = c.status(status)
		}
		unheeded(c.notes, url.block, urlWords)
	}
}

func path(url *statement) string {
	if p := last(url.block, "path"); p != nil && strings.HasPrefix(p.word(1), "/") {
		return p.word(1)
	}
	return "/"
}

// status reads one or more codes and ranges of them into one range.
func (c *checkReader) status(s *statement) string {
	low, high := 0, 0
	for _, word := range s.words[1:] {
		from, to, ranged := strings.Cut(word, "-")
		if !ranged {
			to = from
		}
		first, ok := number(from, 599)
		end, okEnd := number(to, 599)
		if !ok || !okEnd || first < 100 || end < first {
			c.notes.add(s.line, s.text(), "%s is left out: it is no status from 100 to 599", word)
			continue
		}
		if low == 0 || first < low {
			low = first
		}
		high = max(high, end)
	}
	if low == 0 {
		return "200-299"
	}
	one := strconv.Itoa(low)
	if high != low {
		one += "-" + strconv.Itoa(high)
	}
	if len(s.words) > 2 {
		c.notes.add(s.line, s.text(), "becomes %s: status is one range", one)
	}
	return one
}

// udp reads what is sent and awaited, in hexadecimal, where it is text.
func (c *checkReader) udp(h *HealthCheck, s *statement) {
	h.Type = "udp"
	for _, part := range []struct {
		word string
		into *string
	}{{"payload", &h.Send}, {"require_reply", &h.Expect}} {
		found := last(s.block, part.word)
		if found == nil || len(found.words) == 1 {
			continue
		}
		if text, ok := hexText(strings.Join(found.words[1:], "")); ok {
			*part.into = text
		} else {
			c.notes.add(found.line, found.text(), "left out: it is not the hexadecimal form of printable text")
		}
	}
}

// hexText returns the text that hexadecimal digits stand for, if it is printable ASCII.
func hexText(digits string) (string, bool) {
	text, err := hex.DecodeString(digits)
	for _, b := range text {
		if b < ' ' || b > '~' {
			return "", false
		}
	}
	return string(text), err == nil
}

// command reads the command of a MISC_CHECK: a program and its arguments, in one quoted word or in
// several words.
func (c *checkReader) command(h *HealthCheck, s, rs *statement) {
	h.Type = "command"
	h.Timeout = c.time(last(s.block, "misc_timeout"), h.Interval)
	found := last(s.block, "misc_path")
	if found == nil || found.word(1) == "" {
		c.notes.add(s.line, s.text(), "has no misc_path: give the farm's health-check a command")
		return
	}
	if h.Command = found.words[1:]; len(h.Command) == 1 {
		h.Command = nil
		for _, w := range confWords(found.word(1)) {
			h.Command = append(h.Command, w.text)
		}
	}
	if slices.Contains(h.Command, rs.word(1)) {
		c.notes.add(found.line, found.text(), "is run for every server with the address of the first: let the command take SLUICE_ADDRESS of its environment in its place")
	}
}

// time reads seconds, perhaps with a fraction: "5", or "2.5s".
func (c *checkReader) time(s *statement, otherwise string) string {
	if s == nil {
		return otherwise
	}
	seconds, err := strconv.ParseFloat(s.word(1), 64)
	if err != nil || !(seconds >= 0.1 && seconds <= 3600) {
		c.notes.add(s.line, s.text(), "left out: it is no time from 0.1 to 3600 seconds")
		return otherwise
	}
	d := time.Duration(seconds * float64(time.Second)).Round(time.Millisecond)
	if d%time.Second == 0 {
		return strconv.Itoa(int(d / time.Second))
	}
	return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + "s"
}
