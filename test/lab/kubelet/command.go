package kubelet

import (
	"path"
	"strconv"
	"strings"
	"time"
)

// command is the effect of a pod's command: a lab has no images, so only a few built-in commands
// work.
type command struct {
	code  int           // exit status
	takes time.Duration // until it ends
	known bool          // false if a part of it is not built in; that part succeeds at once
}

// readCommand reads a command line: true, false, sleep SECONDS, exit N, each also with a path, and
// `sh -c` with some of them in a row, separated by ; or &&.
func readCommand(args []string) command {
	if len(args) == 3 && isShell(args[0]) && args[1] == "-c" {
		return readScript(args[2])
	}
	if len(args) == 0 {
		return command{}
	}
	return readWords(args)
}

func isShell(name string) bool {
	switch path.Base(name) {
	case "sh", "bash", "ash", "dash":
		return true
	}
	return false
}

func readScript(script string) command {
	all := command{known: true}
	for list := range strings.SplitSeq(strings.NewReplacer("\n", ";").Replace(script), ";") {
		for part := range strings.SplitSeq(list, "&&") {
			words := strings.Fields(part)
			if len(words) == 0 {
				continue
			}
			c := readWords(words)
			all.code, all.takes, all.known = c.code, all.takes+c.takes, all.known && c.known
			if words[0] == "exit" {
				return all
			}
			if c.code != 0 {
				break // the command after && is skipped
			}
		}
	}
	return all
}

func readWords(words []string) command {
	switch name := path.Base(words[0]); {
	case (name == "true" || name == ":") && len(words) == 1:
		return command{known: true}
	case name == "false" && len(words) == 1:
		return command{code: 1, known: true}
	case name == "exit" && len(words) == 1:
		return command{known: true}
	case name == "exit" && len(words) == 2:
		if code, err := strconv.ParseUint(words[1], 10, 8); err == nil {
			return command{code: int(code), known: true}
		}
	case name == "sleep" && len(words) == 2:
		takes, ok := readSleep(words[1])
		return command{takes: takes, known: ok}
	}
	return command{}
}

// readSleep parses the argument of sleep: seconds, or a number with one of the units s, m and h.
func readSleep(word string) (time.Duration, bool) {
	if last := word[len(word)-1]; last >= '0' && last <= '9' {
		word += "s"
	}
	d, err := time.ParseDuration(word)
	if err != nil || d < 0 {
		return 0, false
	}
	return d, true
}
