package state

import (
	"encoding/base64"
	"fmt"
	"strings"
)

// What is sealed in the state is bound to its use: a sealed secret cannot be opened in the place of another.

// CertificateKeyContext binds the key of a certificate.
func CertificateKeyContext(certificateUID string) string {
	return "cloudless/certificate-key/" + certificateUID
}

// ChallengeKeyContext binds the key of the certificate that answers an ACME authority.
func ChallengeKeyContext(challengeUID string) string {
	return "cloudless/certificate-challenge/" + challengeUID
}

// AcmeAccountContext binds the key of an account at an ACME authority.
func AcmeAccountContext(accountUID string) string { return "cloudless/acme-account/" + accountUID }

// DNSSettingContext binds a setting of a DNS provider.
func DNSSettingContext(provider, setting string) string {
	return "cloudless/dns-setting/" + provider + "/" + setting
}

// AuthorityKeyContext binds the key of a cluster's certificate authority.
func AuthorityKeyContext(cluster string) string { return "cloudless/ca-key/" + cluster }

// GossipKeyContext binds the key of the servers' gossip.
func GossipKeyContext(cluster string) string { return "cloudless/gossip-key/" + cluster }

// KeyEncryptionKeyContext binds the next key-encryption key, while all servers get it.
func KeyEncryptionKeyContext(cluster string) string { return "cloudless/key-encryption-key/" + cluster }

// PasswordContext binds the password of a registry.
func PasswordContext(loginUID string) string { return "cloudless/registry-password/" + loginUID }

// SecretKeyContext binds the data key of a version of a secret.
func SecretKeyContext(secretUID string, version uint64) string {
	return fmt.Sprintf("cloudless/secret-key/%s:%d", secretUID, version)
}

// AccessKeyContext binds the secret of an access key.
func AccessKeyContext(keyUID string) string { return "cloudless/access-key/" + keyUID }

// BucketKeyContext binds the key that encrypts what is in a bucket.
func BucketKeyContext(bucketUID, id string) string {
	return "cloudless/bucket-key/" + bucketUID + ":" + id
}

// WorkloadKeyContext binds a key that signs the tokens of workloads.
func WorkloadKeyContext(cluster, key string) string {
	return "cloudless/workload-key/" + cluster + "/" + key
}

// settingMark begins a sealed setting of a DNS provider, which is text.
const settingMark = "sealed:"

// SettingText is a sealed setting as it is stored.
func SettingText(sealed []byte) string {
	return settingMark + base64.StdEncoding.EncodeToString(sealed)
}

// SealedSetting is what [SettingText] was made from; false if a text is not sealed.
func SealedSetting(text string) ([]byte, bool) {
	encoded, ok := strings.CutPrefix(text, settingMark)
	sealed, err := base64.StdEncoding.DecodeString(encoded)
	return sealed, ok && err == nil
}
