package command

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cloudless/cloudless/internal/suggest"
)

// flagError turns cobra's errors about flags into readable ones.
func flagError(cmd *cobra.Command, err error) error {
	if e, ok := errors.AsType[*pflag.NotExistError](err); ok {
		// The flag may belong to a mistyped command.
		if words := cmd.Flags().Args(); cmd.HasSubCommands() && len(words) > 0 {
			return unknownCommand(cmd, words[0])
		}
		if short := e.GetSpecifiedShortnames(); short != "" {
			return Usagef(cmd, "there is no flag -%s", e.GetSpecifiedName())
		}
		return Usagef(cmd, "there is no flag --%s%s", e.GetSpecifiedName(), didYouMeanFlag(cmd, e.GetSpecifiedName()))
	}
	if e, ok := errors.AsType[*pflag.ValueRequiredError](err); ok {
		value, _ := pflag.UnquoteUsage(e.GetFlag())
		return Usagef(cmd, "--%s needs a value: --%s %s", e.GetFlag().Name, e.GetFlag().Name, value)
	}
	if e, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		return Usagef(cmd, "--%s %.64q %s", e.GetFlag().Name, e.GetValue(), wrongValue(e))
	}
	return Usagef(cmd, "%w", err)
}

func didYouMeanFlag(cmd *cobra.Command, name string) string {
	var all []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			all = append(all, f.Name)
		}
	})
	if near := suggest.To(name, slices.Values(all)); near != "" {
		return "; did you mean --" + near + "?"
	}
	return ""
}

func wrongValue(e *pflag.InvalidValueError) string {
	switch e.GetFlag().Value.Type() {
	case "int", "int32", "int64", "uint", "uint32", "uint64":
		return "is not a whole number"
	case "bool":
		return "is neither true nor false"
	case "duration":
		return "is not a length of time: write such as 30s or 5m"
	}
	return fmt.Sprintf("cannot be used: %v", e.Unwrap())
}
