package identity

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"testing"
)

func TestAJoinTokenCarriesWhatJoiningNeeds(t *testing.T) {
	ca := newTestCA(t, testCluster).Trust().Fingerprint()
	token := NewJoinToken(ca)
	text := token.Reveal()
	if !regexp.MustCompile(`^cljoin_[a-z2-7]{16}_[a-z2-7]{52}_[a-z2-7]{52}_[a-z2-7]{7}$`).MatchString(text) {
		t.Fatalf("a join token looks like %s", text)
	}
	parsed, err := ParseJoinToken(" " + text + "\n")
	if err != nil {
		t.Fatal(err)
	}
	if parsed.ID() != token.ID() || parsed.CA() != ca || !parsed.Matches(token.Hash()) {
		t.Errorf("parsed token has id %s, CA %s, matches %v", parsed.ID(), parsed.CA(), parsed.Matches(token.Hash()))
	}
}

func TestAPITokenCarriesTheFingerprintOfTheCA(t *testing.T) {
	want := newTestCA(t, testCluster).Trust().Fingerprint()
	token := NewAPIToken(want)
	parsed, err := ParseAPIToken(" " + token.Reveal() + "\n")
	if err != nil {
		t.Fatal(err)
	}
	ca, ok := parsed.CA()
	if parsed.ID() != token.ID() || !parsed.Matches(token.Hash()) || !ok || ca != want {
		t.Errorf("parsed token %s of CA %s (%v), want %s of CA %s", parsed, ca, ok, token, want)
	}
}

func TestAPITokenOfAnOlderVersionStillCalls(t *testing.T) {
	old := APIToken{tokenSecret: newTokenSecret(apiPrefix)}
	if !regexp.MustCompile(`^clapi_[a-z2-7]{16}_[a-z2-7]{52}_[a-z2-7]{7}$`).MatchString(old.Reveal()) {
		t.Fatalf("an old API token looks like %s", old.Reveal())
	}
	parsed, err := ParseAPIToken(old.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := parsed.CA(); ok || !parsed.Matches(old.Hash()) {
		t.Errorf("parsed token %s carries a CA (%v) or does not match %s", parsed, ok, old)
	}
}

func TestNoTokenMatchesTheHashOfAnother(t *testing.T) {
	token := NewAPIToken(Fingerprint{})
	if NewAPIToken(Fingerprint{}).Matches(token.Hash()) {
		t.Error("two new tokens match")
	}
	// The same secret under another id or of another kind is another token.
	renamed, other := token, token
	renamed.id = "aaaaaaaaaaaaaaaa"
	other.kind = joinPrefix
	if renamed.Matches(token.Hash()) || other.Matches(token.Hash()) {
		t.Error("a hash is good for another id or kind")
	}
	if token.Matches(nil) || (APIToken{}).Matches(APIToken{}.Hash()) {
		t.Error("nothing matches nothing")
	}
}

func TestDamagedTokenIsReportedAsDamaged(t *testing.T) {
	text := NewJoinToken(Fingerprint{}).Reveal()
	mistyped := []byte(text)
	mistyped[30]++
	for name, s := range map[string]string{
		"cut off":       text[:len(text)-1],
		"field missing": text[:strings.LastIndex(text, "_")],
		"mistyped":      string(mistyped),
		"upper case":    "cljoin" + strings.ToUpper(text[6:]),
		"more":          text + "_aaaa",
	} {
		_, err := ParseJoinToken(s)
		if err == nil || !strings.Contains(err.Error(), "mistyped or cut off") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTheWrongKindOfTokenIsNamed(t *testing.T) {
	if _, err := ParseJoinToken(NewAPIToken(Fingerprint{}).Reveal()); err == nil || !strings.Contains(err.Error(), "is an API token") {
		t.Errorf("joining with an API token: %v", err)
	}
	if _, err := ParseAPIToken(NewJoinToken(Fingerprint{}).Reveal()); err == nil || !strings.Contains(err.Error(), "is a join token") {
		t.Errorf("calling with a join token: %v", err)
	}
	if _, err := ParseAPIToken("hunter2"); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("calling with a password: %v", err)
	}
}

// Tokens must be safe to leave in any struct that is printed or logged.
func TestTokensDoNotRevealTheirSecret(t *testing.T) {
	join, api := NewJoinToken(Fingerprint{}), NewAPIToken(Fingerprint{})
	nested := struct {
		token APIToken
		Join  *JoinToken
	}{api, &join}
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		fmt.Fprintf(&out, verb+verb+verb+"\n", join, api, nested)
	}
	for _, handler := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
		slog.New(handler).Info("x", "join", join, "api", &api, "nested", nested)
	}
	if err := json.NewEncoder(&out).Encode([]any{join, api, nested}); err != nil {
		t.Fatal(err)
	}
	for _, secret := range [][]byte{join.secret(), api.secret()} {
		decimal := strings.Trim(fmt.Sprint(secret[:8]), "[]")
		for _, form := range []string{
			string(secret), base32Lower.EncodeToString(secret), fmt.Sprintf("%x", secret), decimal, fmt.Sprintf("%#v", secret)[7:40],
		} {
			if strings.Contains(out.String(), form) {
				t.Errorf("a secret was printed as %q in\n%s", form, out.String())
			}
		}
	}
	if !strings.Contains(out.String(), api.ID()) {
		t.Error("the id of a token should be printed, so that it can be found")
	}
}

func FuzzParseJoinToken(f *testing.F) {
	f.Add(NewJoinToken(Fingerprint{1, 2, 3}).Reveal())
	f.Add(NewAPIToken(Fingerprint{}).Reveal())
	f.Add("cljoin____")
	f.Fuzz(func(t *testing.T, s string) {
		token, err := ParseJoinToken(s)
		if err == nil && token.Reveal() != strings.TrimSpace(s) {
			t.Errorf("ParseJoinToken accepted %q", s)
		}
	})
}

func FuzzParseAPIToken(f *testing.F) {
	f.Add(NewAPIToken(Fingerprint{}).Reveal())
	f.Add(NewJoinToken(Fingerprint{}).Reveal())
	f.Add(APIToken{tokenSecret: newTokenSecret(apiPrefix)}.Reveal())
	f.Add("clapi_")
	f.Fuzz(func(t *testing.T, s string) {
		token, err := ParseAPIToken(s)
		if err == nil && token.Reveal() != strings.TrimSpace(s) {
			t.Errorf("ParseAPIToken accepted %q", s)
		}
	})
}
