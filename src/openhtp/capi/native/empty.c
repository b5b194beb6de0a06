/* A library that some clients list as needed and take nothing from. */
int openhtp_stands_in_for_this_library = 1;
