package rules

import (
	"slices"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// expression is a rule that the contract writes as an expression. The functions
// are found by the very text: one that is changed there is not known here any
// more, and left to the interpreter until its function is here too.
func expression(field protoreflect.FieldDescriptor, text string) valueCheck {
	check, ok := expressions[text]
	if !ok || field.Kind() != protoreflect.StringKind && !field.IsExtension() {
		return unknown
	}
	return func(v protoreflect.Value) bool { return check(v.String()) }
}

var expressions = map[string]func(string) bool{
	`!rule || this == '' || this.matches('^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$')`: func(s string) bool {
		return s == "" || isWord(s, 63, lowerOrDigit, "-")
	},
	`!rule || this == '' || this.matches('^([0-9]{1,6}m|[0-9]{1,6}([.][0-9]{1,3})?)$')`: func(s string) bool {
		if whole, milli := strings.CutSuffix(s, "m"); milli {
			return isDigits(whole, 6)
		}
		return s == "" || isDecimal(s, 6)
	},
	`!rule || this == '' || this.matches('^[0-9]{1,16}([.][0-9]{1,3})?(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?$')`: func(s string) bool {
		return s == "" || isDecimal(s[:len(s)-byteUnit(s)], 16)
	},
	`!rule || this == '' || this.matches('^([0-9]{1,9}(ms|s|m|h))+$')`: isDuration,
	`!rule || this.matches('^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$')`: func(s string) bool {
		prefix, key, prefixed := strings.Cut(s, "/")
		if !prefixed {
			key = s
		}
		return (!prefixed || isWord(prefix, 253, lowerOrDigit, ".-")) && isWord(key, 63, letterOrDigit, "._-")
	},
	`!rule || this == '' || this.matches('^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$')`: func(s string) bool {
		return s == "" || isWord(s, 63, letterOrDigit, "._-")
	},
	`this != ''`: func(s string) bool { return s != "" },
	`this.matches('^[A-Za-z_][A-Za-z0-9_]{0,254}$')`: func(s string) bool {
		return s != "" && len(s) <= 255 && (s[0] < '0' || s[0] > '9') && isMadeOf(s, letterOrDigit, "_")
	},
	`this == '' || this.startsWith('/') && size(this) <= 4096`: func(s string) bool {
		return s == "" || s[0] == '/' && (len(s) <= 4096 || utf8.RuneCountInString(s) <= 4096)
	},
	`this == '' || this.matches('^[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,31})?$')`: func(s string) bool {
		user, group, grouped := strings.Cut(s, ":")
		return s == "" || isAccount(user) && (!grouped || isAccount(group))
	},
	`this in ['', 'SIGTERM', 'SIGINT', 'SIGQUIT', 'SIGHUP', 'SIGUSR1', 'SIGUSR2', 'SIGWINCH', 'SIGKILL']`: func(s string) bool {
		return slices.Contains([]string{"", "SIGTERM", "SIGINT", "SIGQUIT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGKILL"}, s)
	},
}

// isWord reports whether s has 1 to most characters. Those at its ends must be ordinary; those between may also be
// others.
func isWord(s string, most int, ordinary func(byte) bool, others string) bool {
	return s != "" && len(s) <= most && ordinary(s[0]) && ordinary(s[len(s)-1]) && isMadeOf(s, ordinary, others)
}

func isMadeOf(s string, ordinary func(byte) bool, others string) bool {
	for i := range len(s) {
		if !ordinary(s[i]) && strings.IndexByte(others, s[i]) < 0 {
			return false
		}
	}
	return true
}

func isAccount(s string) bool {
	return s != "" && len(s) <= 32 && s[0] != '.' && s[0] != '-' && isMadeOf(s, letterOrDigit, "_.-")
}

func isDigits(s string, most int) bool {
	return s != "" && len(s) <= most && isMadeOf(s, digit, "")
}

// isDecimal is a number with at most three places.
func isDecimal(s string, most int) bool {
	whole, fraction, pointed := strings.Cut(s, ".")
	return isDigits(whole, most) && (!pointed || isDigits(fraction, 3))
}

// byteUnit is the length of the unit at the end of an amount of bytes.
func byteUnit(s string) int {
	if rest, binary := strings.CutSuffix(s, "i"); binary {
		if rest != "" && strings.IndexByte("KMGTP", rest[len(rest)-1]) >= 0 {
			return 2
		}
		return 0
	}
	if s != "" && strings.IndexByte("kMGTP", s[len(s)-1]) >= 0 {
		return 1
	}
	return 0
}

func isDuration(s string) bool {
	for s != "" {
		digits := 0
		for digits < len(s) && digit(s[digits]) {
			digits++
		}
		if digits == 0 || digits > 9 {
			return false
		}
		unit := s[digits:]
		switch {
		case strings.HasPrefix(unit, "ms"):
			s = unit[2:]
		case unit != "" && strings.IndexByte("smh", unit[0]) >= 0:
			s = unit[1:]
		default:
			return false
		}
	}
	return true
}

func digit(b byte) bool         { return b >= '0' && b <= '9' }
func lowerOrDigit(b byte) bool  { return b >= 'a' && b <= 'z' || digit(b) }
func letterOrDigit(b byte) bool { return b >= 'A' && b <= 'Z' || lowerOrDigit(b) }
