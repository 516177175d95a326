package docs_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	inline      = regexp.MustCompile("`([^`]+)`")
	placeholder = regexp.MustCompile(`^[A-Z][A-Z:/-]*$`)
	assignment  = regexp.MustCompile(`^[A-Za-z_]+=`)
)

// TestCommands reads each command of the blocks, and those in the sentences, as the programs
// themselves read them: each subcommand, flag, target and test that is named exists. What TestRun
// runs needs no reading, unless it may fail, or is left out where a page follows another.
func TestCommands(t *testing.T) {
	c := &commandReader{read: map[string]error{}}
	for _, page := range pages(t) {
		all, prose := blocks(t, page)
		for _, b := range all {
			for _, command := range b.commands() {
				if b.runs() && os.Geteuid() == 0 && status(command.text) == "" && !ofTheLab(command.text) {
					continue
				}
				c.check(t, b.String(), command.text)
			}
		}
		for _, m := range inline.FindAllStringSubmatch(prose, -1) {
			c.check(t, page, strings.Join(strings.Fields(m[1]), " "))
		}
	}
	if len(c.read) < 50 {
		t.Errorf("only %d commands found", len(c.read))
	}
}

// commandReader remembers what it has read.
type commandReader struct{ read map[string]error }

func (c *commandReader) check(t *testing.T, where, text string) {
	t.Helper()
	for _, words := range simple(text) {
		for _, part := range parts(words) {
			key := strings.Join(part, " ")
			err, done := c.read[key]
			if !done {
				err = read(part)
				c.read[key] = err
			}
			if err != nil {
				t.Errorf("%s: %s: %v", where, key, err)
			}
		}
	}
}

// simple parts a text into the words of each command in it, without quotation marks and comments.
// It knows as much of the shell as the pages use.
func simple(text string) (all [][]string) {
	var words []string
	var word strings.Builder
	var quote rune
	started := false
	endWord := func() {
		if started {
			words = append(words, word.String())
		}
		word.Reset()
		started = false
	}
	end := func() {
		endWord()
		if len(words) > 0 {
			all = append(all, words)
		}
		words = nil
	}
	comment := false
	for _, r := range strings.ReplaceAll(text, "\\\n", " ") {
		switch {
		case comment:
			comment = r != '\n'
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, started = r, true
		case r == '#' && !started:
			comment = true
		case r == ' ':
			endWord()
		case strings.ContainsRune("|&;\n()", r):
			end()
		default:
			word.WriteRune(r)
			started = true
		}
	}
	end()
	return all
}

// parts returns a command, and the commands in its arguments, each without what is not of it.
func parts(words []string) (all [][]string) {
	for len(words) > 0 && assignment.MatchString(words[0]) {
		words = words[1:]
	}
	if at := slices.Index(words, "sluice"); at > 0 && words[0] == "setpriv" {
		words = words[at:]
	}
	if len(words) > 1 && words[0] == "lab" { // as the page of the lab says it
		words = append([]string{"sluice"}, words...)
	}
	if len(words) == 0 {
		return nil
	}
	words = slices.Clone(words)
	words[0] = strings.TrimPrefix(words[0], "bin/")
	if words[0] == "k" {
		words[0] = "kubectl"
	}
	words = slices.DeleteFunc(words, func(w string) bool {
		return strings.Trim(w, "[]….") == "" || strings.HasPrefix(w, "<") || strings.HasPrefix(w, ">")
	})
	for i := range words {
		words[i] = strings.Trim(words[i], "[]")
	}
	if at := slices.Index(words, "--"); at >= 0 && words[0] != "go" {
		all = parts(words[at+1:])
		words = words[:at]
	}
	switch {
	case len(words) > 3 && words[0] == "sluice" && words[1] == "lab" && words[2] == "exec":
		return append(append(all, parts(words[4:])...), words[:3])
	case len(words) > 3 && words[0] == "sluice" && words[1] == "lab" && words[2] == "kubectl":
		return append(all, append([]string{"kubectl"}, words[3:]...), words[:3])
	}
	return append(all, words)
}

// read has a program read its command line. What is none of ours passes.
func read(words []string) error {
	if len(words) < 2 {
		return nil
	}
	switch words[0] {
	case "sluice", "sluice-lab", "sluice-bgp":
		return readHelp(filepath.Join(programs, words[0]), words[1:])
	case "kubectl", "helm":
		return readHelp(clients[words[0]], words[1:])
	case "make":
		cmd := exec.Command("make", append([]string{"-n"}, words[1:]...)...)
		cmd.Dir = root
		return output(cmd)
	case "go":
		return readGo(words[1:])
	}
	return nil
}

// readHelp asks for the help of a command line: flags are read before that.
func readHelp(program string, args []string) error {
	last := args[len(args)-1]
	at := len(args)
	if strings.HasPrefix(last, "-") && last != "-" { // it may want a value
		at--
	}
	out, err := exec.Command(program, slices.Insert(slices.Clone(args), at, "--help")...).CombinedOutput()
	text := string(out)
	if at < len(args) && strings.Contains(text, "needs an argument") {
		return nil
	}
	if err != nil {
		// A placeholder is no number.
		for i := 1; i < len(args) && !strings.Contains(text, "unknown"); i++ {
			if placeholder.MatchString(args[i]) && strings.Contains(text, args[i-1]) && strings.HasPrefix(args[i-1], "-") {
				return readHelp(program, slices.Delete(slices.Clone(args), i-1, i+1))
			}
		}
		return fmt.Errorf("%w: %s", err, text)
	}
	if args[0] == "bench" && len(args) > 1 && !strings.HasPrefix(args[1], "-") && !regexp.MustCompile(`(?m)^  `+regexp.QuoteMeta(args[1])+`\b`).MatchString(text) {
		return errors.New("there is no such experiment")
	}
	// A command that has others takes nothing else.
	flags := slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "-") })
	if strings.Contains(text, " [command]\n") && !flags && !placeholder.MatchString(last) && !strings.Contains(last, "/") {
		if usage := regexp.MustCompile(`(?m)^  .* ` + regexp.QuoteMeta(last) + ` \[command\]$`); !usage.MatchString(text) {
			return errors.New("there is no such subcommand")
		}
	}
	return nil
}

// readGo checks that what 'go run' and 'go test' are to find exists.
func readGo(args []string) error {
	pattern := "."
	if at := slices.Index(args, "-run"); at > 0 && at+1 < len(args) {
		pattern = args[at+1]
	}
	found := 0
	var folders []string
	for _, a := range args[1:] {
		if !strings.HasPrefix(a, "./") {
			continue
		}
		if _, err := os.Stat(filepath.Join(root, strings.TrimSuffix(a, "/..."))); err != nil {
			return err
		}
		folders = append(folders, a)
		if hasTest(a, pattern) {
			found++
		}
	}
	if args[0] == "test" && len(folders) > 0 && found == 0 {
		return fmt.Errorf("there is no test %s in %s", pattern, strings.Join(folders, " "))
	}
	return nil
}

func output(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("run %s: %w: %s", strings.Join(cmd.Args, " "), err, out)
	}
	return nil
}
