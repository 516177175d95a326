package importer

import (
	"encoding/hex"
	neturl "net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"sluice.dev/sluice/internal/balancer/keys"
)

// checkReader finds the health check of a service: a farm has one, keepalived one or more of each
// server.
type checkReader struct {
	notes   *notes
	service *service
	begun   bool // a server was read
}

// server reads the checks of one server. They go to its own port, also where packets do not.
func (c *checkReader) server(vs, rs *statement, r server) {
	var check keys.Object
	line := rs.line
	for _, s := range rs.block {
		if why, known := checkWords[s.word(0)]; !known || why != "" {
			continue
		}
		if check != nil {
			c.notes.add(s.line, s.text(), "left out: a farm has one health check, and this server has another one before it")
			continue
		}
		if check, line = c.check(s, rs, vs, r), s.line; check == nil {
			continue
		}
		if check.Text("port") == "" && dials(check) && r.Port() != 0 && r.keepsPort(c.service.addrs) && r.portDiffers(c.service.addrs) {
			check["port"] = strconv.Itoa(int(r.Port()))
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

// check reads one check, nil if there is none like it. What it does not say itself, its server and
// its service say.
func (c *checkReader) check(s, rs, vs *statement, r server) keys.Object {
	say := func(word string) *statement {
		for _, in := range []*statement{s, rs, vs} {
			if found := last(in.block, word); found != nil {
				return found
			}
		}
		return nil
	}
	h := keys.Object{"interval": c.time(say("delay_loop"), "60"), "timeout": c.time(say("connect_timeout"), "5"), "rise": "1"}
	retries := c.retries(s, say)
	h["fall"] = strconv.Itoa(retries + 1)
	if !c.kind(h, s, rs, r, say) {
		return nil
	}
	if retries > 0 {
		c.delay(s, say("delay_before_retry"), h.Text("interval"))
	}
	if seconds(h.Text("timeout")) > seconds(h.Text("interval")) {
		h["timeout"] = h["interval"]
		c.notes.once(Part, s.line, s.text(), "its timeout becomes its interval (delay_loop): a check takes no longer than that")
	}
	return h
}

func httpCheck(s *statement) bool { return strings.HasSuffix(s.word(0), "_GET") }

// delay says that a failed check is repeated after another time than with keepalived.
func (c *checkReader) delay(s, said *statement, interval string) {
	delay := "1"
	if httpCheck(s) {
		delay = "3"
	}
	delay = c.time(said, delay)
	later := "later"
	if seconds(interval) < seconds(delay) {
		later = "sooner"
	}
	if delay != interval {
		c.notes.once(Part, s.line, s.text(), "is repeated after its interval (delay_loop) when it fails, and not after delay_before_retry (by default 3 seconds for HTTP, else one): a server that fails is out "+later)
	}
}

// retries is how often a check is repeated before the server is down.
func (c *checkReader) retries(s *statement, say func(string) *statement) int {
	usual := 1
	if s.word(0) == "MISC_CHECK" {
		usual = 0
	}
	retry := say("retry")
	if old := last(s.block, "nb_get_retry"); old != nil && httpCheck(s) && last(s.block, "retry") == nil {
		retry = old
	}
	if retry == nil {
		return usual
	}
	n, ok := number(retry.word(1), 100)
	if n == 0 && !slices.Contains(s.block, retry) {
		ok = false // keepalived takes 0 in a check alone
	}
	if !ok {
		c.notes.add(retry.line, retry.text(), "left out: it is no number from 1 to 100, or in a check from 0")
		return usual
	}
	return n
}

// seconds reads what time writes.
func seconds(text string) float64 {
	n, _ := strconv.ParseFloat(strings.TrimSuffix(text, "s"), 64)
	return n
}

// dials reports whether a check goes to a port.
func dials(h keys.Object) bool { return h["type"] != "icmp" && h["type"] != "command" }

// kind fills in what is of one kind of check alone, and reports whether there is such a check.
func (c *checkReader) kind(h keys.Object, s, rs *statement, r server, say func(string) *statement) bool {
	var known vocabulary
	there := true
	block := s.block
	switch s.word(0) {
	case "HTTP_GET", "SSL_GET":
		known = httpWords
		c.http(h, s, say)
	case "UDP_CHECK":
		known = udpWords
		there = c.udp(h, s)
	case "PING_CHECK":
		h["type"] = "icmp"
	case "MISC_CHECK":
		known = miscWords
		there = c.command(h, s, rs, r)
	case "SMTP_CHECK":
		known = smtpWords
		h["type"] = "tcp"
		c.notes.add(s.line, s.text(), "becomes a check of type tcp: what the mail server says is not read")
		if host := last(s.block, "host"); host != nil { // an older form
			block = append(block[:len(block):len(block)], host.block...)
			unheeded(c.notes, host.block, smtpHostWords)
		}
	default:
		h["type"] = "tcp"
	}
	if port := last(block, "connect_port"); port != nil && dials(h) {
		if n, ok := number(port.word(1), 65535); ok && n > 0 {
			h["port"] = strconv.Itoa(n)
		} else {
			c.notes.add(port.line, port.text(), "left out: it is no port")
		}
	}
	unheeded(c.notes, s.block, anyCheckWords, known)
	return there
}

// http reads the first URL of a check.
func (c *checkReader) http(h keys.Object, s *statement, say func(string) *statement) {
	h["type"], h["method"], h["path"], h["status"] = "http", "GET", "/", "200-299"
	if s.word(0) == "SSL_GET" {
		h["type"], h["insecure"] = "https", "on" // keepalived does not look at certificates
	}
	c.host(h, say("virtualhost"))
	read := false
	for _, url := range s.block {
		if url.word(0) != "url" {
			continue
		}
		if read {
			c.notes.add(url.line, strings.TrimSpace("url "+pathOf(url)), "left out: a farm's health check has one URL, the first")
			continue
		}
		read, h["path"] = true, c.path(url)
		c.host(h, last(url.block, "virtualhost"))
		if status := last(url.block, "status_code"); status != nil {
			h["status"] = c.status(status)
		}
		unheeded(c.notes, url.block, urlWords)
	}
}

// plainHost is a name or an address, perhaps with a port.
var plainHost = regexp.MustCompile(`^([A-Za-z0-9._-]+|\[[0-9a-fA-F:.]+\])(:[0-9]+)?$`)

func (c *checkReader) host(h keys.Object, s *statement) {
	switch {
	case s == nil:
	case plainHost.MatchString(s.word(1)):
		h["host"] = s.word(1)
	default:
		c.notes.add(s.line, s.text(), "left out: it is no name of a host, so that the server is asked by its address")
	}
}

// pathOf is what a url block says of its path, "" if nothing.
func pathOf(url *statement) string {
	if p := last(url.block, "path"); p != nil {
		return p.word(1)
	}
	return ""
}

func (c *checkReader) path(url *statement) string {
	p := pathOf(url)
	if _, err := neturl.Parse(p); err == nil && strings.HasPrefix(p, "/") && !strings.ContainsAny(p, " #") {
		return p
	}
	if p != "" {
		c.notes.add(url.line, "path "+p, "becomes /: a path begins with a slash, and has neither spaces nor #")
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
		if !ok || !okEnd || first < 200 || end < first {
			c.notes.add(s.line, s.text(), "%s is left out: it is no status from 200 to 599", word)
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

// udp reads what is sent and awaited, in hexadecimal, where it is text. keepalived has a server up
// that is silent, unless an answer is required; here an answer is required always.
func (c *checkReader) udp(h keys.Object, s *statement) bool {
	h["type"] = "udp"
	payload, reply := last(s.block, "payload"), last(s.block, "require_reply")
	if reply == nil {
		c.notes.add(s.line, s.text(), "left out: without require_reply a server may be silent, and a check of type udp needs an answer; servers that answer nothing are taken for up")
		return false
	}
	if payload != nil && len(payload.words) > 1 {
		var ok bool
		if h["send"], ok = hexText(payload.words[1:]); !ok {
			c.notes.add(s.line, s.text(), "left out: its payload is not the hexadecimal form of printable text; give the farm a health-check of type command")
			return false
		}
	}
	var ok bool
	if h["expect"], ok = hexText(reply.words[1:]); !ok {
		c.notes.add(reply.line, reply.text(), "left out, so that any answer will do: it is not the hexadecimal form of printable text")
	}
	return true
}

// hexText returns the text that words of hexadecimal digits stand for, if it is printable ASCII of
// a length that is sent.
func hexText(words []string) (string, bool) {
	var all []byte
	for _, word := range strings.Fields(strings.Join(words, " ")) {
		if len(word)%2 != 0 { // the last digit stands alone
			word = word[:len(word)-1] + "0" + word[len(word)-1:]
		}
		part, err := hex.DecodeString(word)
		if err != nil {
			return "", false
		}
		all = append(all, part...)
	}
	printable := !slices.ContainsFunc(all, func(b byte) bool { return b < ' ' || b > '~' })
	if !printable || len(all) > 4096 {
		return "", false
	}
	return string(all), true
}

// command reads the command of a MISC_CHECK: a program and its arguments, in one quoted word or in
// several words.
func (c *checkReader) command(h keys.Object, s, rs *statement, r server) bool {
	h["type"] = "command"
	h["timeout"] = c.time(last(s.block, "misc_timeout"), h.Text("interval"))
	found := last(s.block, "misc_path")
	if found == nil || strings.TrimSpace(found.word(1)) == "" {
		c.notes.add(s.line, s.text(), "left out: it has no misc_path")
		return false
	}
	command := found.words[1:]
	if len(command) == 1 {
		command = nil
		for _, w := range confWords(found.word(1)) {
			command = append(command, w.text)
		}
	}
	script, own := forEach(command, rs.word(1), r, c.service.addrs)
	weighs := last(s.block, "misc_dynamic") != nil
	switch {
	case weighs: // 1 is bad, and all else is a weight
		command = []string{"/bin/sh", "-c", script + "; test $? != 1"}
	case own:
		command = []string{"/bin/sh", "-c", "exec " + script}
	}
	h["command"] = command
	if own {
		c.notes.note(Nothing, found.line, found.text(), "becomes a command that takes the address of each server from its environment")
	}
	return true
}

// forEach writes a command for the shell. A server's own address in it, and its port after that,
// are taken from the environment, so that the command is right for all servers; own reports whether
// it has the address.
func forEach(command []string, address string, r server, addrs []virtualAddr) (script string, own bool) {
	more := "0-9A-Za-z." // what an address goes on with
	if r.Addr().Is6() {
		more += ":"
	}
	is := regexp.MustCompile(`(^|[^0-9A-Za-z.:])` + regexp.QuoteMeta(address) + "($|[^" + more + "])")
	port := strconv.Itoa(int(r.Port()))
	hasPort := r.Port() != 0 && !r.keepsPort(addrs)
	var words []string
	for i, w := range command {
		quoted := shellQuote(w)
		switch {
		case i > 0 && is.MatchString(w):
			own = true
			before, after, _ := strings.Cut(w, address)
			quoted = shellQuote(before) + `"$SLUICE_ADDRESS"`
			if rest, cut := strings.CutPrefix(after, ":"+port); cut && hasPort && !strings.HasPrefix(rest+" ", "0") {
				quoted, after = quoted+`:"$SLUICE_PORT"`, rest
			}
			quoted += shellQuote(after)
		case own && hasPort && w == port:
			quoted = `"$SLUICE_PORT"`
		case w == "":
			quoted = "''"
		}
		words = append(words, quoted)
	}
	return strings.Join(words, " "), own
}

var plainWord = regexp.MustCompile(`^[A-Za-z0-9_./:=,@%+-]*$`)

// shellQuote returns a word as the shell reads it, "" for "".
func shellQuote(word string) string {
	if plainWord.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// time reads seconds, perhaps with a fraction: "5", or "2.5s".
func (c *checkReader) time(s *statement, otherwise string) string {
	if s == nil {
		return otherwise
	}
	seconds, err := strconv.ParseFloat(s.word(1), 64)
	if err != nil || !(seconds >= 0.01 && seconds <= 86400) {
		c.notes.add(s.line, s.text(), "left out: it is no time from 0.01 to 86400 seconds")
		return otherwise
	}
	d := time.Duration(seconds * float64(time.Second)).Round(time.Millisecond)
	if d%time.Second == 0 {
		return strconv.Itoa(int(d / time.Second))
	}
	return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + "s"
}
