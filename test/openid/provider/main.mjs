// A real OpenID provider for tests, at a free port of this machine. It prints its address as one line when it is ready, and
// ends with its standard input. With a key and a certificate (files) it speaks HTTPS.
//
//   node main.mjs [KEY CERTIFICATE]
//
// Everybody may log in under any name and with any password. What the ID token says of a user follows from the name: ada has
// a verified e-mail address and groups, mallory's address is not verified, and methuselah's ID token is valid for three days.
import { readFileSync } from 'node:fs';
import http from 'node:http';
import https from 'node:https';
import { Provider } from 'oidc-provider';

const groups = { ada: ['deployers', 'readers'], bob: [] };

const [key, certificate] = process.argv.slice(2);
const server = key
  ? https.createServer({ key: readFileSync(key), cert: readFileSync(certificate) })
  : http.createServer();

process.stdin.resume().on('end', () => process.exit(0));

server.listen(0, '127.0.0.1', () => {
  const issuer = `${key ? 'https' : 'http'}://127.0.0.1:${server.address().port}`;
  const provider = new Provider(issuer, {
    clients: [{
      client_id: 'cloudless',
      application_type: 'native',
      token_endpoint_auth_method: 'none',
      redirect_uris: ['http://127.0.0.1/callback'],
      grant_types: ['authorization_code', 'urn:ietf:params:oauth:grant-type:device_code'],
      response_types: ['code'],
    }],
    claims: { openid: ['sub'], email: ['email', 'email_verified'], profile: ['name'], groups: ['groups'] },
    scopes: ['openid', 'email', 'profile', 'groups'],
    conformIdTokenClaims: false, // claims are in the ID token itself
    pkce: { required: () => true, methods: ['S256'] },
    features: { deviceFlow: { enabled: true }, devInteractions: { enabled: true } },
    ttl: { IdToken: (ctx) => (ctx.oidc.account?.accountId === 'methuselah' ? 3 * 86400 : 600), DeviceCode: 600, Interaction: 600, Session: 600, Grant: 600, AccessToken: 600 },
    cookies: { keys: ['of a test'] },
    findAccount: (ctx, id) => ({
      accountId: id,
      claims: () => ({
        sub: id, name: id, email: `${id}@example.org`, email_verified: id !== 'mallory', groups: groups[id] ?? [],
      }),
    }),
  });
  server.on('request', provider.callback());
  console.log(issuer);
});
