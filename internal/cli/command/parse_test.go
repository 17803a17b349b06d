package command

import (
	"maps"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

var noon = time.Date(2026, 5, 6, 12, 0, 0, 0, time.FixedZone("", 2*60*60))

func TestParseTime(t *testing.T) {
	for text, want := range map[string]string{
		"5m":                        "2026-05-06T09:55:00Z",
		"1h30m":                     "2026-05-06T08:30:00Z",
		"500ms":                     "2026-05-06T09:59:59.5Z",
		"2d":                        "2026-05-04T10:00:00Z",
		"2026-01-02T03:04:05Z":      "2026-01-02T03:04:05Z",
		"2026-01-02T03:04:05+01:00": "2026-01-02T02:04:05Z",
		"2026-01-02T03:04:05.25Z":   "2026-01-02T03:04:05.25Z",
		"2026-01-02T03:04":          "2026-01-02T01:04:00Z", // local time
		"2026-01-02 03:04:05":       "2026-01-02T01:04:05Z",
		"2026-01-02":                "2026-01-01T22:00:00Z",
	} {
		got, err := ParseTime(text, noon)
		if err != nil || got.UTC().Format(time.RFC3339Nano) != want {
			t.Errorf("parseTime(%q) = %v, %v; want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "-5m", "5", "d", "yesterday", "2026-13-01", "999999999d", "9999999999h", "0000-01-01"} {
		if got, err := ParseTime(text, noon); err == nil {
			t.Errorf("parseTime(%q) = %v", text, got)
		}
	}
}

func FuzzParseTime(f *testing.F) {
	for _, seed := range []string{"5m", "2d", "2026-01-02T03:04:05Z", "2026-01-02", "9999-12-31T23:59:59-23:59"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		at, err := ParseTime(text, noon)
		if err != nil {
			if len(err.Error()) > 600 {
				t.Errorf("the error repeats %d bytes", len(err.Error()))
			}
			return
		}
		if err := timestamppb.New(at).CheckValid(); err != nil {
			t.Errorf("parseTime(%q) = %v, which the API cannot hold: %v", text, at, err)
		}
	})
}

func TestParsePublish(t *testing.T) {
	for text, want := range map[string]*cloudlessv1.Port{
		"8080":         {Port: 8080, Publish: 8080},
		"53/udp":       {Port: 53, Publish: 53, Protocol: "udp"},
		"8080:80":      {Port: 80, Publish: 8080},
		"53:5353/udp":  {Port: 5353, Publish: 53, Protocol: "udp"},
		"http=8080:80": {Port: 80, Publish: 8080, Name: "http"},
		"http=80":      {Port: 80, Publish: 80, Name: "http"},
		"dns=53/tcp":   {Port: 53, Publish: 53, Name: "dns", Protocol: "tcp"},

		"127.0.0.1:8080:80":   {Port: 80, Publish: 8080, PublishAddress: "127.0.0.1"},
		"dns=[::1]:53:53/udp": {Port: 53, Publish: 53, Name: "dns", Protocol: "udp", PublishAddress: "::1"},
	} {
		if got, err := ParsePublish(text); err != nil || !proto.Equal(got, want) {
			t.Errorf("parsePublish(%q) = %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "0", "65536", "-1", "80:", ":80", "80:0", "1:2:3", "127.0.0.1:80", "::1:80:80", "[::1]:80", "[127.0.0.1]:80:80", "eth0:80:80", "80/sctp", "=", "x="} {
		if port, err := ParsePublish(text); err == nil {
			t.Errorf("parsePublish(%q) = %v", text, port)
		}
	}
}

func FuzzParsePublish(f *testing.F) {
	for _, seed := range []string{"8080", "53/udp", "http=80", "8080:80", "=/", ":", "99999"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		port, err := ParsePublish(text)
		if err == nil && (port.GetPort() < 1 || port.GetPort() > 65535 || port.GetPublish() < 1 || port.GetPublish() > 65535) {
			t.Errorf("parsePublish(%q) = %v", text, port)
		}
	})
}

func TestParsePairs(t *testing.T) {
	lookup := func(key string) (string, bool) { return "from here", key == "SET" }
	got, err := ParsePairs("variable", []string{"A=1", "B=", "C=x=y", "SET"}, lookup)
	if want := map[string]string{"A": "1", "B": "", "C": "x=y", "SET": "from here"}; err != nil || !maps.Equal(got, want) {
		t.Errorf("parsePairs = %v, %v; want %v", got, err, want)
	}
	for want, pairs := range map[string][]string{
		`variable "=x" has no key`:    {"=x"},
		"the environment has none":    {"UNSET"},
		`variable "A" is given twice`: {"A=1", "A=2"},
		`variable "" has no value`:    {""},
	} {
		if got, err := ParsePairs("variable", pairs, lookup); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("parsePairs(%q) = %v, %v; want %q", pairs, got, err, want)
		}
	}
}

func FuzzParsePairs(f *testing.F) {
	f.Add("A=1", "B=2")
	f.Add("A", "=")
	f.Add("", "A=b=c")
	f.Fuzz(func(t *testing.T, one, two string) {
		got, err := ParsePairs("variable", []string{one, two}, nil)
		if err != nil {
			return
		}
		if len(got) != 2 {
			t.Fatalf("parsePairs(%q, %q) = %v", one, two, got)
		}
		for key, value := range got {
			if pair := key + "=" + value; pair != one && pair != two {
				t.Errorf("%q was made of %q and %q", pair, one, two)
			}
		}
	})
}
