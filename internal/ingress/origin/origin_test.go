package origin

import (
	"io"
	"strings"
	"testing"
)

// What is read is what was sent, and nothing of the requests behind it.
func TestGreetingEndsWithItsLine(t *testing.T) {
	for _, sent := range []Greeting{{Route: "0198", Bucket: "site"}, {Route: "0198"}} {
		r := strings.NewReader(sent.String() + "GET / HTTP/1.1\r\n")
		got, err := Read(r)
		if err != nil || got != sent {
			t.Errorf("%+v arrives as %+v, %v", sent, got, err)
		}
		if rest, _ := io.ReadAll(r); string(rest) != "GET / HTTP/1.1\r\n" {
			t.Errorf("behind it is %q", rest)
		}
	}
}

func TestBrokenGreetingIsRefused(t *testing.T) {
	for _, text := range []string{"", "\n", "0198\n", " site\n", "0198 site more\n", "0198 site", strings.Repeat("x", 300) + " site\n"} {
		if got, err := Read(strings.NewReader(text)); err == nil {
			t.Errorf("%q is read as %+v", text, got)
		}
	}
}
