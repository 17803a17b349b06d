package identity

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"strings"
)

// A token is written as words of lower-case letters and digits with underscores between them, so that a double
// click takes all of it:
//
//	cljoin_<id>_<secret>_<fingerprint of the CA>_<checksum>
//	clapi_<id>_<secret>_<fingerprint of the CA>_<checksum>
//
// API tokens that older versions made have no fingerprint. They still let their bearer call.
//
// The prefix tells the kinds apart and lets scanners for leaked secrets find them.
const (
	joinPrefix = "cljoin"
	apiPrefix  = "clapi"

	tokenIDSize     = 10
	tokenSecretSize = 32
	checksumSize    = crc32.Size
)

var base32Lower = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// tokenSecret is what JoinToken and APIToken have in common. The secret lies in a function, because fmt prints
// unexported fields, and the memory behind pointers, of a struct whose methods it cannot call.
type tokenSecret struct {
	kind   string
	id     string
	secret func() []byte
}

func newTokenSecret(kind string) tokenSecret {
	var id [tokenIDSize]byte
	secret := make([]byte, tokenSecretSize)
	// crypto/rand never fails: it ends the program rather than return something guessable.
	_, _ = rand.Read(id[:])
	_, _ = rand.Read(secret)
	return tokenSecret{kind: kind, id: base32Lower.EncodeToString(id[:]), secret: func() []byte { return secret }}
}

func (t tokenSecret) bytes() []byte {
	if t.secret == nil {
		return nil
	}
	return t.secret()
}

// ID identifies the stored token. It is not secret.
func (t tokenSecret) ID() string { return t.id }

// Hash is what the cluster stores of the token. A plain digest is enough for a secret of 256 random bits, which no
// dictionary contains.
func (t tokenSecret) Hash() []byte {
	h := sha256.New()
	fmt.Fprintf(h, "cloudless token\x00%s\x00%s\x00", t.kind, t.id)
	h.Write(t.bytes())
	return h.Sum(nil)
}

// Matches reports, in constant time, whether the stored hash is that of this token.
func (t tokenSecret) Matches(hash []byte) bool {
	return t.secret != nil && subtle.ConstantTimeCompare(t.Hash(), hash) == 1
}

// String is the token without its secret.
func (t tokenSecret) String() string { return t.kind + "_" + t.id + "_redacted" }

// GoString is the token without its secret.
func (t tokenSecret) GoString() string { return t.String() }

// LogValue is the token without its secret.
func (t tokenSecret) LogValue() slog.Value { return slog.StringValue(t.String()) }

// JoinToken lets a machine enroll. It carries the fingerprint of the CA, by which the machine verifies the server
// before it sends anything.
type JoinToken struct {
	tokenSecret
	ca Fingerprint
}

// NewJoinToken makes a join token of the cluster with this CA.
func NewJoinToken(ca Fingerprint) JoinToken {
	return JoinToken{tokenSecret: newTokenSecret(joinPrefix), ca: ca}
}

// ParseJoinToken reads what [JoinToken.Reveal] wrote; white space around it is ignored.
func ParseJoinToken(s string) (JoinToken, error) {
	t, rest, err := parseToken(s, joinPrefix, len(Fingerprint{}))
	if err != nil {
		return JoinToken{}, err
	}
	return JoinToken{tokenSecret: t, ca: Fingerprint(rest)}, nil
}

// CA is the fingerprint of the CA of the cluster to join.
func (t JoinToken) CA() Fingerprint { return t.ca }

// Reveal returns the whole token, including its secret. It is shown once, to the creator of the token.
func (t JoinToken) Reveal() string { return t.reveal(t.ca[:]) }

// APIToken lets its bearer call the API. It carries the fingerprint of the CA, by which the bearer verifies a server
// that it knows only by its address.
type APIToken struct {
	tokenSecret
	ca *Fingerprint // nil in a token that an older version made
}

// NewAPIToken makes an API token of the cluster with this CA.
func NewAPIToken(ca Fingerprint) APIToken { return APIToken{newTokenSecret(apiPrefix), &ca} }

// ParseAPIToken reads what [APIToken.Reveal] wrote; white space around it is ignored.
func ParseAPIToken(s string) (APIToken, error) {
	const separatorsWithoutCA = 3
	if strings.Count(s, "_") == separatorsWithoutCA {
		t, _, err := parseToken(s, apiPrefix, 0)
		return APIToken{tokenSecret: t}, err
	}
	t, rest, err := parseToken(s, apiPrefix, len(Fingerprint{}))
	if err != nil {
		return APIToken{}, err
	}
	ca := Fingerprint(rest)
	return APIToken{t, &ca}, nil
}

// CA is the fingerprint of the CA of the token's cluster, if the token carries it.
func (t APIToken) CA() (ca Fingerprint, ok bool) {
	if t.ca == nil {
		return Fingerprint{}, false
	}
	return *t.ca, true
}

// Reveal returns the whole token, including its secret. It is shown once, to the creator of the token.
func (t APIToken) Reveal() string {
	if t.ca == nil {
		return t.reveal(nil)
	}
	return t.reveal(t.ca[:])
}

func (t tokenSecret) reveal(rest []byte) string {
	words := []string{t.kind, t.id, base32Lower.EncodeToString(t.bytes())}
	if len(rest) > 0 {
		words = append(words, base32Lower.EncodeToString(rest))
	}
	body := strings.Join(words, "_")
	return body + "_" + checksum(body)
}

// checksum detects a token that was mistyped or cut off, so that the user learns that instead of "denied".
func checksum(body string) string {
	sum := binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE([]byte(body)))
	return base32Lower.EncodeToString(sum)
}

// parseToken parses a token of one kind that carries restSize bytes after its secret. Its errors never quote more than
// the prefix: the rest may contain a secret, wherever a typing error has put it.
func parseToken(s, kind string, restSize int) (t tokenSecret, rest []byte, err error) {
	words := strings.Split(strings.TrimSpace(s), "_")
	if words[0] != kind {
		return t, nil, wrongTokenKind(words[0], kind)
	}
	sizes := []int{tokenIDSize, tokenSecretSize, restSize, checksumSize}
	if restSize == 0 {
		sizes = []int{tokenIDSize, tokenSecretSize, checksumSize}
	}
	damaged := fmt.Errorf("the %s token is mistyped or cut off: copy it again, whole", tokenNoun(kind))
	if len(words) != 1+len(sizes) {
		return t, nil, damaged
	}
	fields := make([][]byte, len(sizes))
	for i, size := range sizes {
		// The decoder ignores stray bits at the end; encoding again makes sure that a token has only one form.
		fields[i], err = base32Lower.DecodeString(words[i+1])
		if err != nil || len(fields[i]) != size || base32Lower.EncodeToString(fields[i]) != words[i+1] {
			return t, nil, damaged
		}
	}
	last := len(words) - 1
	if checksum(strings.Join(words[:last], "_")) != words[last] {
		return t, nil, damaged
	}
	return tokenSecret{kind: kind, id: words[1], secret: func() []byte { return fields[1] }}, fields[2], nil
}

func wrongTokenKind(got, want string) error {
	switch {
	case got == joinPrefix && want == apiPrefix:
		return errors.New("this is a join token, which only enrolls machines: calling the API needs an API token (clapi_…)")
	case got == apiPrefix && want == joinPrefix:
		return errors.New("this is an API token, which cannot enroll a machine: joining needs a join token (cljoin_…)")
	}
	return fmt.Errorf("this is not a token: %s tokens begin with %s_", tokenNoun(want), want)
}

func tokenNoun(kind string) string {
	if kind == joinPrefix {
		return "join"
	}
	return "API"
}

// ParseFingerprint reads what [Fingerprint.String] writes; colons as openssl shows them are ignored.
func ParseFingerprint(s string) (Fingerprint, error) {
	var f Fingerprint
	data, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(s), ":", ""))
	if err != nil || len(data) != len(f) {
		return f, fmt.Errorf("%q is not a fingerprint: it has %d hexadecimal digits", s, 2*len(f))
	}
	return Fingerprint(data), nil
}
