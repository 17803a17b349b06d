package spec

import (
	"errors"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// maxBytes is the largest amount of bytes that can be requested. Every amount below it has
// a canonical form that the API's rules accept.
const maxBytes = 8 << 50

var errTooLarge = errors.New("is too large")

// unit is a suffix and its factor.
type unit struct {
	suffix string
	factor uint64
}

// byteUnits has the binary units first, largest first, as FormatBytes needs.
var byteUnits = []unit{
	{"Pi", 1 << 50},
	{"Ti", 1 << 40},
	{"Gi", 1 << 30},
	{"Mi", 1 << 20},
	{"Ki", 1 << 10},
	{"P", 1e15},
	{"T", 1e12},
	{"G", 1e9},
	{"M", 1e6},
	{"k", 1e3},
}

const binaryUnits = 5

// ParseCPU reads an amount of CPU such as "2", "0.5" or "250m" in thousandths.
func ParseCPU(s string) (int64, error) {
	number, milli := strings.CutSuffix(s, "m")
	factor := uint64(1000)
	if milli {
		factor = 1
	}
	n, err := parseAmount(number, factor, !milli, 6)
	if err != nil {
		return 0, quantityError(s, err, "an amount of CPU such as 2, 0.5 or 250m")
	}
	return n, nil
}

// FormatCPU writes thousandths of a CPU in canonical form.
func FormatCPU(millis int64) string {
	switch {
	case millis%1000 == 0:
		return strconv.FormatInt(millis/1000, 10)
	case -1e6 < millis && millis < 1e6:
		return strconv.FormatInt(millis, 10) + "m"
	default:
		// The API's rules allow six digits before the m.
		return strings.TrimRight(fmt.Sprintf("%d.%03d", millis/1000, max(millis%1000, -(millis%1000))), "0")
	}
}

// ParseBytes reads an amount of bytes such as "128Mi", "1.5Gi" or "1000000". A
// fraction of a byte is rounded up.
func ParseBytes(s string) (int64, error) {
	number, factor := s, uint64(1)
	for _, u := range byteUnits {
		if rest, ok := strings.CutSuffix(s, u.suffix); ok {
			number, factor = rest, u.factor
			break
		}
	}
	n, err := parseAmount(number, factor, true, 16)
	if err == nil && n > maxBytes {
		err = errTooLarge
	}
	if err != nil {
		return 0, quantityError(s, err, "an amount of bytes such as 128Mi, 1.5Gi or 1000000")
	}
	return n, nil
}

// FormatBytes writes an amount of bytes in canonical form: in the largest binary
// unit that divides it, else as a plain number.
func FormatBytes(n int64) string {
	if n == 0 {
		return "0"
	}
	for _, u := range byteUnits[:binaryUnits] {
		if f := int64(u.factor); n%f == 0 {
			return strconv.FormatInt(n/f, 10) + u.suffix
		}
	}
	return strconv.FormatInt(n, 10)
}

// parseAmount reads digits with at most three decimals and multiplies them, rounding up.
func parseAmount(s string, factor uint64, fraction bool, maxDigits int) (int64, error) {
	whole, frac, point := strings.Cut(s, ".")
	if !digits(whole, maxDigits) || point && (!fraction || !digits(frac, 3)) {
		return 0, errors.New("is not a number of a known unit")
	}
	w, err := strconv.ParseUint(whole, 10, 64)
	if err != nil {
		return 0, err
	}
	var part uint64
	if point {
		f, err := strconv.ParseUint(frac, 10, 64)
		if err != nil {
			return 0, err
		}
		scale := [...]uint64{1, 10, 100, 1000}[len(frac)]
		part = (f*factor + scale - 1) / scale // at most 999 * 2^50
	}
	hi, lo := bits.Mul64(w, factor)
	sum, carry := bits.Add64(lo, part, 0)
	if hi != 0 || carry != 0 || sum > 1<<62 {
		return 0, errTooLarge
	}
	return int64(sum), nil
}

func digits(s string, most int) bool {
	if s == "" || len(s) > most {
		return false
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return true
}

func quantityError(s string, err error, want string) error {
	if errors.Is(err, errTooLarge) {
		return fmt.Errorf("%q %w", s, errTooLarge)
	}
	return fmt.Errorf("%q must be %s", s, want)
}

// durationUnits is ordered from the largest, as FormatDuration needs.
var durationUnits = []struct {
	suffix string
	length time.Duration
}{{"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}, {"ms", time.Millisecond}}

// ParseDuration reads a duration such as "500ms", "10s" or "1h30m".
func ParseDuration(s string) (time.Duration, error) {
	// time.ParseDuration accepts signs, fractions and units that the API does not.
	if s == "" || strings.ContainsAny(s, "+-.nuµμ") || s == "0" {
		return 0, durationError(s)
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, durationError(s)
	}
	return d, nil
}

func durationError(s string) error {
	return fmt.Errorf("%q must be a length of time such as 500ms, 10s, 5m or 1h30m", s)
}

// FormatDuration writes a duration in canonical form, in whole milliseconds.
func FormatDuration(d time.Duration) string {
	var b strings.Builder
	if d < 0 {
		b.WriteByte('-')
	}
	rest := d.Abs()
	for _, u := range durationUnits {
		if n := rest / u.length; n > 0 {
			b.WriteString(strconv.FormatInt(int64(n), 10))
			b.WriteString(u.suffix)
			rest -= n * u.length
		}
	}
	if b.Len() == 0 || d < 0 && b.Len() == 1 {
		return "0s"
	}
	return b.String()
}

// ParseBandwidth reads an amount of bits per second such as "100M" or "1.5G".
func ParseBandwidth(s string) (int64, error) {
	n, err := ParseBytes(s)
	if err != nil {
		return 0, fmt.Errorf("%q must be a number of bits per second such as 100M or 1.5G", s)
	}
	return n, nil
}

// FormatBandwidth writes bits per second in canonical form: in the largest
// decimal unit that divides them, else as a plain number.
func FormatBandwidth(n int64) string {
	if n == 0 {
		return "0"
	}
	for _, u := range byteUnits[binaryUnits:] {
		if f := int64(u.factor); n%f == 0 {
			return strconv.FormatInt(n/f, 10) + u.suffix
		}
	}
	return strconv.FormatInt(n, 10)
}

// HumanBytes formats an amount of bytes for people: exactly if that is short, as for amounts that people chose, else
// rounded down to one decimal, so that it never promises more than there is. Programs read FormatBytes.
func HumanBytes(n int64) string {
	const short = 4 // digits
	exact := FormatBytes(n)
	if len(strings.TrimRight(exact, "KMGTPi")) <= short || n < 0 {
		return exact
	}
	for _, u := range byteUnits[:binaryUnits] {
		unit := int64(u.factor)
		if n < unit {
			continue
		}
		whole, tenth := n/unit, n%unit*10/unit
		if tenth == 0 || whole >= 100 {
			return strconv.FormatInt(whole, 10) + u.suffix
		}
		return strconv.FormatInt(whole, 10) + "." + strconv.FormatInt(tenth, 10) + u.suffix
	}
	return exact
}

// Count is a number of things in words, such as "3 replicas".
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}

// OutOfMemory says that a program was OOM-killed, and what to do. The limit is that of the workload, empty if it has
// none. Every part of Cloudless uses these words.
func OutOfMemory(limit string) string {
	if limit == "" {
		return "It ran out of memory (OOM) and has no limit of its own: the node had none left; set spec.resources.requests.memory, or use a node with more"
	}
	return "It ran out of memory (OOM): its limit is " + limit + "; raise spec.resources.limits.memory, or make it use less"
}

// ExitReason is why a program ended as far as its exit code does not say it.
func ExitReason(exit *v1.Exit) string {
	if exit.GetReason() == "" && exit.GetOomKilled() {
		return "It ran out of memory (OOM)" // from an agent of an older version
	}
	return exit.GetReason()
}
