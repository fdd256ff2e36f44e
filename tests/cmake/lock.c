#include <memlock.h>
#include <stdio.h>

int main(void) {
    int answer = mutex_lock("x", 5);
    if (answer == MEMLOCK_OK) answer = mutex_unlock("x");
    if (answer != MEMLOCK_OK) fprintf(stderr, "%s %s\n", memlock_describe(answer), memlock_last_error());
    return answer;
}
