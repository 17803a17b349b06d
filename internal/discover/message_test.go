package discover

import (
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
	"pgregory.net/rapid"
)

const cluster = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"

func TestQuestionIsUnderstood(t *testing.T) {
	message, err := query(7)
	if err != nil {
		t.Fatal(err)
	}
	if id, ok := asks(message); !ok || id != 7 {
		t.Errorf("the question is read as %d, %v", id, ok)
	}
	if heard(message) != nil {
		t.Error("a question is taken for an answer")
	}
}

// Questions for a private answer, with another spelling of the name or for several things at once are understood, too.
func TestForeignQuestions(t *testing.T) {
	ask := func(name string, kind dnsmessage.Type, class dnsmessage.Class) []byte {
		t.Helper()
		b := dnsmessage.NewBuilder(nil, dnsmessage.Header{})
		for _, err := range []error{
			b.StartQuestions(),
			b.Question(dnsmessage.Question{Name: dnsmessage.MustNewName("_printer._tcp.local."), Type: dnsmessage.TypePTR, Class: 1}),
			b.Question(dnsmessage.Question{Name: dnsmessage.MustNewName(name), Type: kind, Class: class}),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		message, err := b.Finish()
		if err != nil {
			t.Fatal(err)
		}
		return message
	}
	for _, c := range []struct {
		message []byte
		want    bool
	}{
		{ask("_cloudless._tcp.local.", dnsmessage.TypePTR, 0x8001), true},
		{ask("_CLOUDLESS._tcp.Local.", dnsmessage.TypeALL, 1), true},
		{ask("_cloudless._tcp.local.", dnsmessage.TypeA, 1), false},
		{ask("_other._tcp.local.", dnsmessage.TypePTR, 1), false},
		{ask("_cloudless._tcp.local.", dnsmessage.TypePTR, 1)[:20], false},
		{nil, false},
	} {
		if _, ok := asks(c.message); ok != c.want {
			t.Errorf("%q: understood %v", c.message, ok)
		}
	}
}

func TestAnswerIsParsed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := Found{
			Address: rapid.SampledFrom([]string{"10.0.0.1:7700", "[fd00::1]:7700", "box.example.org:1"}).Draw(t, "address"),
			Cluster: cluster,
		}
		legacy := rapid.Bool().Draw(t, "legacy")
		message, err := answer(9, legacy, "01a1de75-e1a5-75cc-b301-fb59dbfc197b", f)
		if err != nil {
			t.Fatal(err)
		}
		if got := heard(message); !slices.Equal(got, []Found{f}) {
			t.Fatalf("heard is %v, said was %v", got, f)
		}
		if _, ok := asks(message); ok {
			t.Fatal("an answer is taken for a question")
		}
		var p dnsmessage.Parser
		header, err := p.Start(message)
		if err != nil || (header.ID == 9) != legacy {
			t.Fatalf("the header is %v, %v", header, err)
		}
	})
}

// Untrusted text is shown to people: nothing in it may control a terminal, and nothing may be missing.
func TestImplausibleAnswersAreLeftOut(t *testing.T) {
	for _, texts := range [][]string{
		nil,
		{"addr=10.0.0.1:7700"},
		{"ca=" + cluster},
		{"addr=nowhere", "ca=x"},
		{"addr=:7700", "ca=x"},
		{"addr=10.0.0.1:7700\x1b[2J", "ca=x"},
		{"addr=10.0.0.1:7700", "ca=\u202e"},
	} {
		if f, ok := described(texts); ok {
			t.Errorf("%q is taken for %v", texts, f)
		}
	}
}

func FuzzMessages(f *testing.F) {
	question, _ := query(1)
	said, _ := answer(1, true, "name", Found{Address: "10.0.0.1:7700", Cluster: cluster})
	f.Add(question)
	f.Add(said)
	f.Fuzz(func(t *testing.T, message []byte) {
		asks(message)
		for _, one := range heard(message) {
			if one.Cluster == "" || strings.ContainsAny(one.Address+one.Cluster, "\x1b\n\r ") {
				t.Errorf("heard is %q", one)
			}
		}
	})
}
