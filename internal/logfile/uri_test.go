package logfile

import (
	"errors"
	"net/url"
	"strconv"
	"testing"
	"time"
)

func itoa(n int) string { return strconv.Itoa(n) }

func TestURI(t *testing.T) {
	tests := []struct {
		dir    string
		limits Limits
		want   string
	}{
		{"/var/log/x", Limits{}, "cloudless-log:///var/log/x?max-bytes=10485760&max-files=5"},
		{"/a b/?#%", Limits{1, 2, 36 * time.Hour}, "cloudless-log:///a%20b/%3F%23%25?max-age=36h0m0s&max-bytes=1&max-files=2"},
	}
	for _, test := range tests {
		got := URI(test.dir, test.limits)
		if got != test.want {
			t.Errorf("got %s, want %s", got, test.want)
		}
		dir, limits, err := ParseURI(got)
		if err != nil || dir != test.dir || limits != test.limits.withDefaults() {
			t.Errorf("%s reads as %s, %+v, %v", got, dir, limits, err)
		}
	}
}

func TestBinaryURICarriesTheLogInOneArgument(t *testing.T) {
	u, err := url.Parse(BinaryURI("/opt/shim", "/var/log/x", Limits{}))
	if err != nil {
		t.Fatal(err)
	}
	if u.Scheme != "binary" || u.Path != "/opt/shim" || len(u.Query()) != 1 {
		t.Errorf("got %s", u)
	}
	if got, want := u.Query().Get(Command), URI("/var/log/x", Limits{}); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestURIRefusals(t *testing.T) {
	for _, uri := range []string{"", "/a/path", "fifo:///a", "file:///a", "\x00", "binary:///a"} {
		if _, _, err := ParseURI(uri); !errors.Is(err, ErrScheme) {
			t.Errorf("%q: got %v, want %v", uri, err, ErrScheme)
		}
	}
	for _, uri := range []string{
		"cloudless-log:", "cloudless-log:a/b", "cloudless-log://host/a", "cloudless-log:///a?max-bytes=x",
		"cloudless-log:///a?max-files=-1", "cloudless-log:///a?max-age=1", "cloudless-log:///a?other=1",
		"cloudless-log:///a?max-bytes=-5", "cloudless-log:///a?max-age=-5s", "cloudless-log:///a?%zz",
	} {
		if _, _, err := ParseURI(uri); err == nil || errors.Is(err, ErrScheme) {
			t.Errorf("%q: got %v, want a refusal that says why", uri, err)
		}
	}
}

func FuzzParseURI(f *testing.F) {
	f.Add("cloudless-log:///var/log/x?max-bytes=1&max-files=2&max-age=3h")
	f.Add("cloudless-log:///a%20b")
	f.Add("binary:///bin/x?log=y")
	f.Fuzz(func(t *testing.T, uri string) {
		dir, limits, err := ParseURI(uri)
		if err != nil {
			return
		}
		again, limitsAgain, err := ParseURI(URI(dir, limits))
		if err != nil || again != dir || limitsAgain != limits {
			t.Errorf("%q is %q, %+v but then %q, %+v, %v", uri, dir, limits, again, limitsAgain, err)
		}
	})
}

func FuzzParseRecord(f *testing.F) {
	f.Add([]byte("2026-01-02T15:04:05.000000000Z stdout F hello"))
	f.Add([]byte("2026-01-02T15:04:05.999999999Z stderr p "))
	f.Add([]byte("2026-02-30T15:04:05.000000000Z stdout f no such day"))
	f.Add([]byte("2026-01-02T15:04:05,000000000Z stdout P a comma"))
	f.Add([]byte("0000-10-10T00:00:00.+00000000Z stdout f a sign"))
	f.Fuzz(func(t *testing.T, line []byte) {
		rec, err := parseRecord(line)
		if err != nil {
			return
		}
		if got := rec.appendTo(nil); string(got) != string(line)+"\n" {
			t.Errorf("%q is written as %q", line, got)
		}
	})
}
