/* Looks names up as programs do: "lookup api" prints the addresses of a name, "lookup -x 10.96.0.1" the name of one. */
#include <netdb.h>
#include <stdio.h>
#include <string.h>

static int fail(int code) {
	printf("%s\n", gai_strerror(code));
	return 1;
}

int main(int argc, char **argv) {
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found, *one;
	int reverse = argc > 2 && !strcmp(argv[1], "-x");
	char text[NI_MAXHOST];
	int code = getaddrinfo(argv[argc - 1], 0, &hints, &found);
	if (code)
		return fail(code);
	for (one = found; one; one = one->ai_next) {
		code = getnameinfo(one->ai_addr, one->ai_addrlen, text, sizeof text, 0, 0, reverse ? NI_NAMEREQD : NI_NUMERICHOST);
		if (code)
			return fail(code);
		printf("%s\n", text);
	}
	return 0;
}
