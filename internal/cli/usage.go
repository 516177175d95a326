package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// explainUsage has a command and those below it say what is wrong with a command line in the user's
// words.
func explainUsage(cmd *cobra.Command) {
	if accepts := cmd.Args; accepts != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if accepts(cmd, args) == nil {
				return nil
			}
			return wrongArguments(cmd, args)
		}
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return wrongFlag(err) })
	for _, c := range cmd.Commands() {
		explainUsage(c)
	}
}

// wrongArguments says what a command takes, as its Use line has it, with its first example.
func wrongArguments(cmd *cobra.Command, args []string) error {
	name := strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()+" ")
	if cmd.HasAvailableSubCommands() && len(args) > 0 {
		text := fmt.Sprintf("%s has no command %s", name, args[0])
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			return fmt.Errorf("%s: did you mean %s?", text, strings.Join(near, ", "))
		}
		return fmt.Errorf("%s: '%s --help' lists those that there are", text, cmd.CommandPath())
	}
	_, wanted, takesSome := strings.Cut(cmd.Use, " ")
	if !takesSome {
		return fmt.Errorf("%s takes no arguments: leave out %s", name, strings.Join(args, " "))
	}
	text := fmt.Sprintf("%s needs %s", name, wanted)
	if len(args) > 0 {
		text += ", and was given " + strings.Join(args, " ")
	}
	if example, _, _ := strings.Cut(strings.TrimSpace(cmd.Example), "\n"); example != "" {
		text += "; for example: " + example
	}
	return errors.New(text)
}

// wrongFlag says which values a flag takes, where a library would say how it failed to read one.
func wrongFlag(err error) error {
	invalid, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return err
	}
	name, value, want := invalid.GetFlag().Name, invalid.GetValue(), ""
	switch invalid.GetFlag().Value.Type() {
	case "int", "int32", "int64", "uint", "uint16", "uint32":
		want = "a whole number"
	case "float64":
		want = "a number"
	case "duration":
		want = "a time with its unit, such as 300ms, 30s or 5m"
	case "bool":
		want = "true or false"
	default:
		return fmt.Errorf("--%s: %w", name, invalid.Unwrap())
	}
	return fmt.Errorf("--%s %s: give %s", name, value, want)
}
